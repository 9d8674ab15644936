"""Which machine gets which layers, what that needs of its memory, and how fast the ring will be.

Pure: a model's sizes and the nodes' figures in, a placement out.
"""
