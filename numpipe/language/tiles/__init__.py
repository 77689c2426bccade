"""Register tiles and wgmma, references to arrays and shared memory, their loads and stores.

Here belongs what a warpgroup does with values in its registers and how they come and go; what waits for copies is in `pipeline`.
Read `tile` first, then `layouts` (who holds which element), `refs` (what is indexed) and `mma`. References and tiles hold data;
their operators, loads and stores are made methods of them by the files imported here.
"""

from . import elementwise, load, shared, store, views

__all__ = ["elementwise", "load", "shared", "store", "views"]
