"""What model files of the learned baselines say of themselves."""

from __future__ import annotations

from trace_ros.baselines.legolas_network import LegolasConfig
from trace_ros.baselines.nmn_network import NmnConfig
from trace_ros.estimator.checkpoint import Card


class LegolasCard(Card):
    """The card of a Legolas model.

    Attributes:
        network: sizes.
    """

    name: str = "legolas"
    network: LegolasConfig = LegolasConfig()


class NmnCard(Card):
    """The card of a model of NMN-IEKF's network.

    Attributes:
        network: sizes.
    """

    name: str = "nmn_iekf"
    network: NmnConfig = NmnConfig()
