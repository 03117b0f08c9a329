"""Puts this directory on the path, so that tests in its folders share the helpers that lie here."""

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair, not a property that is tested.
settings.register_profile("any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_machine")
