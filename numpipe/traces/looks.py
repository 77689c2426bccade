"""Colors and hatches of timelines, in pictures and pages."""

from __future__ import annotations

from ..plan.protocol import COMPUTING

# Okabe and Ito's colors, and a paler blue that differs from orange in grayscale: (face, hatch,
# color of text on it)
LOOKS = {
    COMPUTING: ("#0072b2", "", "white"),
    "load": ("#a0e2ff", "", "black"),
    "store": ("#e69f00", "", "black"),
    "issue": ("#000000", "", "white"),
    "data": ("#f7ef9a", "////", "black"),
    "slot": ("#e3e3e3", "----", "black"),
    "barrier": ("#e8c7dc", "xxxx", "black"),
    "copy in": ("#56b4e9", "", "black"),
    "copy out": ("#e69f00", "", "black"),
}
PRODUCTS = (("#0072b2", "white"), ("#66cdaa", "black"), ("#d55e00", "white"), ("#f0c0dc", "black"))
"""colors of the warpgroups' products on the tensor core, and of text on them, alternately dark and
light"""
BANDS = {"tile": ("#d0d0d0", "#f0f0f0"), "region": ("#b8e0d2", "#dcefe7")}
"""colors of tiles and of regions, alternating"""


def look(name: str) -> tuple[str, str, str]:
    """Return (face, hatch, ink) of a bar: a key of `LOOKS`, or ``wg1`` for products of warpgroup 1
    on the tensor core."""
    if name in LOOKS:
        return LOOKS[name]
    face, ink = PRODUCTS[int(name[2:]) % len(PRODUCTS)]
    return face, "", ink
