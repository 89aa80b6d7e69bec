"""What happens at, and beyond, the capacity of one worker?

One medium worker, 10 slots, 1.5 s a score: 6.67 applications a second and no more. Arrivals climb
a staircase from 2/s to 14/s without a pause, so the line carries over from step to step, as it
would in a day that gets busier. After the last step nothing arrives any more and the line is
worked off: every job's wait is known to the end, none is guessed or left out. (Reading only what
had ended when the arrivals stopped would leave out the longest waits, those that count.) So the
waits beyond the knee are those of *this* staircase; twice as long a step waits twice as long.

A job belongs to the step in which it was to start, whenever it was sent or scored. The worker has
two database connections for its ten slots, on which nobody may wait.
"""

from __future__ import annotations

from loadtest.lab.knee.experiment import KneeExperiment

EXPERIMENT = KneeExperiment()
