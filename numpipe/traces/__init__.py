"""What happened when, simulated and on a GPU alike: events, and what is made of them.

=============  ==================================================================================================
file           concept
=============  ==================================================================================================
``protocol``   the barriers of a ring's slots, who arrives, what is noted, what takes time: the rows that all others read
``events``     what an event is, and the events of a run; ``trace``: all that can be asked of them
``spans``      what a warpgroup did at every moment, and its tiles and regions
``text``       a timeline as text
``drawing``    `numpipe.timeline`; ``picture``: as SVG and PNG (matplotlib)
``summary``    where the time went
``legal``      whether a trace keeps the rules of the pipeline's protocol
``deadlocks``  who waits for what, as a report, of a run that nobody can go on with
``files``      saved, and read again; ``chrome``: the Trace Event Format
=============  ==================================================================================================
"""

from __future__ import annotations

from .events import Event, Ring
from .trace import Trace

__all__ = ["Event", "Ring", "Trace"]
