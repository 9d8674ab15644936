"""llama.cpp's C API through ctypes.

The functions come from the extension module of `xllamacpp`, which exports the whole API, or from a libllama of the
same build that the user names. ctypes releases the interpreter lock while a function runs.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import importlib.util
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from longspan.errors import RuntimeUnavailableError
from longspan.llamacpp import structs
from longspan.llamacpp.structs import Batch, ContextParameters, ModelParameters

_INT32_POINTER = POINTER(c_int32)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_print_system_info": (c_char_p, []),
    "llama_version": (c_char_p, []),
    "llama_log_set": (None, [structs.LOG_CALLBACK, c_void_p]),
    "llama_model_default_params": (ModelParameters, []),
    "llama_context_default_params": (ContextParameters, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParameters]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_n_embd": (c_int32, [c_void_p]),
    "llama_model_n_layer": (c_int32, [c_void_p]),
    "llama_model_n_ctx_train": (c_int32, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParameters]),
    "llama_free": (None, [c_void_p]),
    "llama_n_ctx": (c_uint32, [c_void_p]),
    "llama_n_ctx_seq": (c_uint32, [c_void_p]),
    "llama_n_batch": (c_uint32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_memory_seq_add": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_memory_seq_pos_max": (c_int32, [c_void_p, c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_set_n_threads": (None, [c_void_p, c_int32, c_int32]),
    "llama_set_embeddings": (None, [c_void_p, c_bool]),
    "llama_synchronize": (None, [c_void_p]),
    "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
    "llama_get_embeddings_ith": (POINTER(c_float), [c_void_p, c_int32]),
    "llama_vocab_type": (c_int32, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_vocab_is_eog": (c_bool, [c_void_p, c_int32]),
    "llama_vocab_is_control": (c_bool, [c_void_p, c_int32]),
    "llama_vocab_get_attr": (c_int32, [c_void_p, c_int32]),
    "llama_vocab_get_text": (c_char_p, [c_void_p, c_int32]),
    "llama_vocab_bos": (c_int32, [c_void_p]),
    "llama_vocab_eos": (c_int32, [c_void_p]),
    "llama_vocab_eot": (c_int32, [c_void_p]),
    "llama_vocab_get_add_bos": (c_bool, [c_void_p]),
    "llama_vocab_get_add_eos": (c_bool, [c_void_p]),
    "llama_tokenize": (c_int32, [c_void_p, c_char_p, c_int32, _INT32_POINTER, c_int32, c_bool, c_bool]),
    "llama_token_to_piece": (c_int32, [c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool]),
    "llama_detokenize": (c_int32, [c_void_p, _INT32_POINTER, c_int32, c_char_p, c_int32, c_bool, c_bool]),
    "ggml_get_name": (c_char_p, [c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_load_all": (None, []),
    "ggml_backend_dev_count": (c_size_t, []),
    "ggml_backend_dev_get": (c_void_p, [c_size_t]),
    "ggml_backend_dev_name": (c_char_p, [c_void_p]),
    "ggml_backend_dev_description": (c_char_p, [c_void_p]),
    "ggml_backend_dev_type": (c_int32, [c_void_p]),
    "ggml_backend_dev_memory": (None, [c_void_p, POINTER(c_size_t), POINTER(c_size_t)]),
}

_LOG_ERROR = 4
_LOG_CONTINUE = 5


class Library:
    """The loaded library. Functions are attributes under their C names, with argument types set.

    path: file of the shared library. last_errors: the newest error lines that llama.cpp logged, oldest first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise RuntimeUnavailableError(
                f"cannot load the llama.cpp library {path}: {error}. Expected llama.cpp build b{structs.BUILD}; "
                "install xllamacpp==2026.10.11549 (and libgomp on Linux), or name another libllama with --library."
            ) from error
        for name, (result, arguments) in _SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise RuntimeUnavailableError(
                    f"the llama.cpp library {path} has no function {name}: it is not build b{structs.BUILD}. "
                    "Use a libllama built from that tag, with ggml linked in or beside it."
                ) from error
            function.restype = result
            function.argtypes = arguments
        self.last_errors: collections.deque[str] = collections.deque(maxlen=8)
        check_layout(self)
        # Kept as an attribute: ctypes callbacks must outlive every call that C makes.
        self._log_callback = structs.LOG_CALLBACK(self._log)
        self.llama_log_set(self._log_callback, None)
        self.llama_backend_init()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._library, name)
        return function

    def _log(self, level: int, text: bytes, _data: object) -> None:
        if level == _LOG_ERROR:
            self.last_errors.append(text.decode("utf-8", "replace").strip())

    def explain(self) -> str:
        """The newest error lines as one sentence, or an empty string; forgets them."""
        text = "; ".join(self.last_errors)
        self.last_errors.clear()
        return text


def check_layout(library: Library) -> None:
    """Compare the library's default parameters with the ones known for the build, field by field.

    Raises RuntimeUnavailableError naming every field that differs: then the structs have another layout and every
    later call would corrupt memory.
    """
    for name, known in (
        ("llama_model_default_params", structs.MODEL_DEFAULTS),
        ("llama_context_default_params", structs.CONTEXT_DEFAULTS),
    ):
        found = getattr(library, name)()
        wrong = [
            f"{field} is {getattr(found, field)!r}, expected {known.get(field)!r}"
            for field, _ in found._fields_
            if getattr(found, field) != known.get(field)
        ]
        if wrong:
            raise RuntimeUnavailableError(
                f"{library.path} is not llama.cpp build b{structs.BUILD}: {name} differs ({'; '.join(wrong[:4])}). "
                "Use the pinned xllamacpp==2026.10.11549 or a libllama built from that tag."
            )


def default_library_path() -> Path:
    """Where the extension module of the installed `xllamacpp` lies.

    Raises RuntimeUnavailableError when the package is not installed.
    """
    specification = importlib.util.find_spec("xllamacpp")
    for folder in (specification.submodule_search_locations or []) if specification else []:
        for candidate in sorted(Path(folder).glob("xllamacpp*.so")):
            return candidate
    raise RuntimeUnavailableError(
        "the package xllamacpp is not installed, so there is no llama.cpp to run. "
        "Install xllamacpp==2026.10.11549, or name a libllama of that build with --library."
    )


@functools.lru_cache(maxsize=4)
def _load(path: Path) -> Library:
    return Library(path)


def load_library(path: str | None = None) -> Library:
    """The library at `path`, or the one inside xllamacpp; loaded once a process.

    Raises RuntimeUnavailableError when it is missing, of another build, or of another struct layout.
    """
    if path is None:
        return _load(default_library_path())
    if not Path(path).is_file():
        raise RuntimeUnavailableError(f"no llama.cpp library at {path}: no such file. Give the path of a libllama.")
    return _load(Path(path).resolve())
