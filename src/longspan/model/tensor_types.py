"""The tensor types of GGUF files: how many bytes a row takes, and what a person calls them.

Sizes are those of ggml (llama.cpp b11549, `ggml_blck_size` and `ggml_type_size`). They stand here so that a stage
process reads its file without loading another library; a test compares them with ggml.
"""

from __future__ import annotations

import dataclasses

from longspan.errors import ModelError


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """number: id in the file. Every `block` elements of a row take `block_bytes` bytes."""

    number: int
    name: str
    block: int
    block_bytes: int

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` elements. Raises ModelError when the row is no whole number of blocks."""
        if elements % self.block:
            raise ModelError(
                f"a row of {elements} elements cannot be {self.name}: that type packs {self.block} together."
            )
        return elements // self.block * self.block_bytes


F32 = TensorType(0, "F32", 1, 4)
F16 = TensorType(1, "F16", 1, 2)
Q4_0 = TensorType(2, "Q4_0", 32, 18)
Q8_0 = TensorType(8, "Q8_0", 32, 34)
BF16 = TensorType(30, "BF16", 1, 2)

TENSOR_TYPES: dict[int, TensorType] = {
    kind.number: kind
    for kind in (
        F32,
        F16,
        Q4_0,
        TensorType(3, "Q4_1", 32, 20),
        TensorType(6, "Q5_0", 32, 22),
        TensorType(7, "Q5_1", 32, 24),
        Q8_0,
        TensorType(10, "Q2_K", 256, 84),
        TensorType(11, "Q3_K", 256, 110),
        TensorType(12, "Q4_K", 256, 144),
        TensorType(13, "Q5_K", 256, 176),
        TensorType(14, "Q6_K", 256, 210),
        TensorType(15, "Q8_K", 256, 292),
        TensorType(16, "IQ2_XXS", 256, 66),
        TensorType(17, "IQ2_XS", 256, 74),
        TensorType(18, "IQ3_XXS", 256, 98),
        TensorType(19, "IQ1_S", 256, 50),
        TensorType(20, "IQ4_NL", 32, 18),
        TensorType(21, "IQ3_S", 256, 110),
        TensorType(22, "IQ2_S", 256, 82),
        TensorType(23, "IQ4_XS", 256, 136),
        TensorType(24, "I8", 1, 1),
        TensorType(25, "I16", 1, 2),
        TensorType(26, "I32", 1, 4),
        TensorType(27, "I64", 1, 8),
        TensorType(28, "F64", 1, 8),
        TensorType(29, "IQ1_M", 256, 56),
        BF16,
        TensorType(34, "TQ1_0", 256, 54),
        TensorType(35, "TQ2_0", 256, 66),
        TensorType(39, "MXFP4", 32, 17),
        TensorType(40, "NVFP4", 64, 36),
        TensorType(41, "Q1_0", 128, 18),
        TensorType(42, "Q2_0", 64, 18),
    )
}
"""By id. Ids that ggml has withdrawn (Q4_0_4_4 and its like) are missing on purpose: they are refused by number."""

_BY_DENSITY = sorted(TENSOR_TYPES.values(), key=lambda kind: kind.block_bytes / kind.block)


def smallest_type(columns: int) -> TensorType:
    """The type in which a row of `columns` elements takes the fewest bytes."""
    return next(kind for kind in _BY_DENSITY if columns % kind.block == 0 and kind.name[0] != "I")


FILE_TYPE_NAMES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}
"""`general.file_type` of llama.cpp (`enum llama_ftype`) as people write it."""
