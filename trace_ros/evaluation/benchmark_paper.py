"""The figures that the TRACE paper prints for the same courses and methods, to stand beside measured ones.

Source: "TRACE", arXiv 2608.05975v1, Tables II (indoor) and III (outdoor): a Raibo2 on real ground, learned methods
fine-tuned on real logs. The outdoor table has no velocity and no orientation, Legolas no velocity.
"""

from __future__ import annotations

from dataclasses import dataclass

CITATION = "TRACE, arXiv 2608.05975v1, Tables II and III: a Raibo2 on real ground, fine-tuned on real logs"
"""What to print beside these figures."""

PATH_LENGTHS_M = {"flat": 39.37, "slippery": 32.30, "soft": 29.21, "grass": 57.63, "hard": 58.69, "full": 72.22}
"""Lengths of the paper's courses, where it gives them."""


@dataclass(frozen=True)
class PaperFigures:
    """One method on one course; None is not in the paper.

    Attributes:
        ate_position_m, ate_velocity_mps, ate_orientation_rad: absolute errors.
        re10_position_m: mean of the relative error over 10 s, with ``re10_position_std_m`` and ``re10_position_p90_m``.
        re10_velocity_mps, re10_orientation_rad: relative errors over 10 s.
    """

    ate_position_m: float
    ate_velocity_mps: float | None
    ate_orientation_rad: float | None
    re10_position_m: float
    re10_velocity_mps: float | None
    re10_orientation_rad: float | None
    re10_position_std_m: float | None = None
    re10_position_p90_m: float | None = None


def _outdoor(ate: float, mean: float, std: float, p90: float) -> PaperFigures:
    return PaperFigures(ate, None, None, mean, None, None, std, p90)


PAPER: dict[tuple[str, str], PaperFigures] = {
    ("flat", "trace"): PaperFigures(0.0882, 0.0561, 0.0352, 0.0538, 0.0795, 0.0172),
    ("flat", "iekf_sr"): PaperFigures(0.3673, 0.0692, 0.1758, 0.1742, 0.0992, 0.0569),
    ("flat", "legolas"): PaperFigures(0.3886, None, 0.1272, 0.1357, None, 0.0534),
    ("flat", "nmn_iekf"): PaperFigures(0.1788, 0.0582, 0.0511, 0.0769, 0.0789, 0.0205),
    ("rough", "trace"): PaperFigures(0.1656, 0.1018, 0.0221, 0.0977, 0.1224, 0.0199),
    ("rough", "iekf_sr"): PaperFigures(0.2722, 0.1053, 0.1294, 0.2028, 0.1395, 0.0425),
    ("rough", "legolas"): PaperFigures(0.8531, None, 0.2482, 0.3050, None, 0.0894),
    ("rough", "nmn_iekf"): PaperFigures(0.5755, 0.1265, 0.0422, 0.1988, 0.1361, 0.0214),
    ("slippery", "trace"): PaperFigures(0.1154, 0.0672, 0.0246, 0.0550, 0.0758, 0.0128),
    ("slippery", "iekf_sr"): PaperFigures(0.2980, 0.0793, 0.1548, 0.1845, 0.1109, 0.0471),
    ("slippery", "legolas"): PaperFigures(0.6849, None, 0.3473, 0.2715, None, 0.1045),
    ("slippery", "nmn_iekf"): PaperFigures(0.2065, 0.0691, 0.0423, 0.0915, 0.0790, 0.0173),
    ("soft", "trace"): PaperFigures(0.1530, 0.0844, 0.0153, 0.0930, 0.0941, 0.0133),
    ("soft", "iekf_sr"): PaperFigures(0.7027, 0.0801, 0.1083, 0.2878, 0.1017, 0.0380),
    ("soft", "legolas"): PaperFigures(0.7620, None, 0.2596, 0.3304, None, 0.0949),
    ("soft", "nmn_iekf"): PaperFigures(0.3309, 0.0919, 0.0241, 0.1264, 0.1001, 0.0143),
    ("grass", "trace"): _outdoor(0.4831, 0.1633, 0.0896, 0.2620),
    ("grass", "iekf_sr"): _outdoor(1.0078, 0.5592, 0.0893, 0.6538),
    ("grass", "legolas"): _outdoor(2.3665, 0.7466, 0.1222, 0.9028),
    ("grass", "nmn_iekf"): _outdoor(0.5820, 0.3395, 0.0722, 0.4299),
    ("hard", "trace"): _outdoor(0.1796, 0.1738, 0.1617, 0.4144),
    ("hard", "iekf_sr"): _outdoor(0.9290, 0.5453, 0.1600, 0.7389),
    ("hard", "legolas"): _outdoor(1.4581, 0.5443, 0.2409, 0.8001),
    ("hard", "nmn_iekf"): _outdoor(0.3166, 0.2597, 0.1550, 0.5230),
    ("stairs", "trace"): _outdoor(0.1629, 0.1458, 0.0695, 0.2194),
    ("stairs", "iekf_sr"): _outdoor(0.4421, 0.2987, 0.1276, 0.4758),
    ("stairs", "legolas"): _outdoor(1.3512, 0.4247, 0.2413, 0.7691),
    ("stairs", "nmn_iekf"): _outdoor(0.4445, 0.1506, 0.0613, 0.2292),
    ("full", "trace"): _outdoor(0.7328, 0.2078, 0.1396, 0.3637),
    ("full", "iekf_sr"): _outdoor(1.5379, 0.6194, 0.1011, 0.6998),
    ("full", "legolas"): _outdoor(3.8345, 0.8831, 0.1579, 1.0639),
    ("full", "nmn_iekf"): _outdoor(0.7898, 0.3321, 0.1527, 0.5249),
}
"""By course and method, both as they are called here."""
