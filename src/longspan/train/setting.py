"""Everything that training needs of a model, opened."""

from __future__ import annotations

import dataclasses

import numpy as np
import psutil
import torch

from longspan.errors import UsageError
from longspan.llamacpp.library import load_library
from longspan.model.embedding import TokenEmbedding
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.train.conversations import TurnTokens, turn_tokens
from longspan.train.llama_base import LlamaBase
from longspan.train.options import TrainingOptions
from longspan.train.target import OutputRule, Target, output_matrix, output_rule
from longspan.train.torch_base import TorchBase, is_plain, unpacked_bytes
from longspan.train.writing import BaseModel

_LENGTH, _LENGTH_CPU = 640, 256
_PROBED = 8
_SHARE_OF_MEMORY = 0.25
"""Of what is free, for the unpacked weights of a model."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model, ready to be trained for.

    device: where the head is trained. length: tokens of a text. base: what writes. matrix: the output matrix.
    """

    source: ModelSource
    device: torch.device
    length: int
    tokenizer: Tokenizer
    turns: TurnTokens
    base: BaseModel
    embedding: TokenEmbedding
    matrix: TokenEmbedding
    rule: OutputRule

    @property
    def dtype(self) -> torch.dtype:
        """Of large matrices that are not trained."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def target(self, tokens: np.ndarray | None) -> Target:
        """The output matrix over some tokens, None for all."""
        return Target.of(self.matrix, self.rule, tokens, self.device, self.dtype)

    def close(self) -> None:
        """Release the model."""
        self.base.close()


def open_setting(source: ModelSource, options: TrainingOptions) -> Setting:
    """Open a model.

    Raises ModelError when no head can be trained for it, UsageError when there is no such device.
    """
    device = _device(options.device)
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer(source.vocabulary_file(), library=load_library(options.library))
    turns = turn_tokens(source, tokenizer)
    base = _base(source, device, options)
    matrix = output_matrix(source, options.library)
    try:
        rule = _rule(source, base, turns, matrix)
    except BaseException:
        base.close()
        raise
    length = min(_LENGTH if device.type == "cuda" else _LENGTH_CPU, source.description.context_length)
    embedding = source.token_embedding(options.library)
    return Setting(source, device, length, tokenizer, turns, base, embedding, matrix, rule)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("PyTorch finds no CUDA device here. Use --device cpu, or install a PyTorch with CUDA.")
    return torch.device(name)


def _base(source: ModelSource, device: torch.device, options: TrainingOptions) -> BaseModel:
    """PyTorch where it knows the architecture and the unpacked weights leave enough memory, else llama.cpp."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if is_plain(source) and unpacked_bytes(source, dtype) < _SHARE_OF_MEMORY * free:
        return TorchBase(source, device, dtype, options.library)
    return LlamaBase(source, options.threads, options.library)


def _rule(source: ModelSource, base: BaseModel, turns: TurnTokens, matrix: TokenEmbedding) -> OutputRule:
    base.begin(1, _PROBED)
    found = [
        [part.float().cpu() for part in base.step(np.array([token], np.int32), position)]
        for position, token in enumerate((turns.opening + turns.to_answer)[:_PROBED])
    ]
    logits, hidden = (torch.cat(parts) for parts in zip(*found, strict=True))
    return output_rule(source, hidden, logits, matrix)
