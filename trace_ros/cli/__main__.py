"""``python -m trace_ros.cli``, and ``torchrun ... -m trace_ros.cli``: the ``trace`` command."""

from trace_ros.cli import main

if __name__ == "__main__":
    main()
