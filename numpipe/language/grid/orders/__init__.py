"""Tile orders: which tile of a grid comes t-th, in a kernel and on the host.

CTAs that run at the same time compute consecutive tiles, so the order decides which blocks they
share in L2::

    row                grouped(2)         snake(2)           column
     0  1  2            0  2  4            0  2  4            0  4  8
     3  4  5            1  3  5            1  3  5            1  5  9
     6  7  8            6  8 10           10  8  6            2  6 10
     9 10 11            7  9 11           11  9  7            3  7 11

In a kernel an order is a name, an object, or a host table: a 2-D int32 array argument with one row
of indices per tile::

    # group may be a run-time value
    for m, n in numpipe.tiles(m_tiles, n_tiles, order="snake", group=8):
    for m, n in numpipe.tiles(m_tiles, n_tiles, order=numpipe.orders.Snake(8)):
    # a field of a Static: name or object
    for m, n in numpipe.tiles(m_tiles, n_tiles, order=cfg.order):
    # an array argument, such as Snake(8).table((32, 64))
    for m, n in numpipe.tiles(m_tiles, n_tiles, order=table):

On the host an order returns the indices of all tiles (`Order.table`) and the bytes that are loaded
into L2 (`Order.bytes`). `tile_order` defines the objects and host tables, `tile_numbers` the
arithmetic that kernels and host share.
"""

from .tile_order import NAMES, Column, Grouped, Order, Row, Snake, Table, named

__all__ = ["NAMES", "Column", "Grouped", "Order", "Row", "Snake", "Table", "named"]
