"""All that `make results` measures.

Options are chosen so that everything together takes less than 40 minutes on two cores.
"""

from __future__ import annotations

from tools.results.exactness import EXACTNESS
from tools.results.measurement import Measurement
from tools.results.planning import PLANNING
from tools.results.speculation import SPECULATION
from tools.results.speed import SPEED

MEASUREMENTS: tuple[Measurement, ...] = (*EXACTNESS, *SPEED, *SPECULATION, *PLANNING)
