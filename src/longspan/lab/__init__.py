"""Virtual time: the real planner against a modelled ring.

A scenario is a set of arrivals, limits and a ring of stages with known costs. Running it takes no model and no
clock, and gives the same figures every time.
"""
