"""The binding: which library is taken, and that one with another struct layout is refused before it is used."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from longspan.errors import RuntimeUnavailableError
from longspan.llamacpp import structs
from longspan.llamacpp.library import Library, check_layout, default_library_path, load_library
from longspan.llamacpp.structs import ContextParameters, ModelParameters


def test_the_installed_library_is_of_the_pinned_build() -> None:
    library = load_library()
    assert library is load_library(), "loaded once a process"
    assert library is load_library(str(default_library_path()))
    check_layout(library)


@pytest.mark.parametrize(
    ("table", "function"),
    [("CONTEXT_DEFAULTS", "llama_context_default_params"), ("MODEL_DEFAULTS", "llama_model_default_params")],
)
def test_every_known_default_is_compared(table: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever field another build moves, one of these values changes."""
    library = load_library()
    known: dict[str, object] = getattr(structs, table)
    for field, value in known.items():
        other = not value if isinstance(value, bool) else value + 1  # type: ignore[operator]
        monkeypatch.setattr(structs, table, {**known, field: other})
        with pytest.raises(RuntimeUnavailableError) as raised:
            check_layout(library)
        message = str(raised.value)
        assert f"is not llama.cpp build b{structs.BUILD}: {function} differs" in message
        assert f"{field} is {value!r}, expected {other!r}" in message
        assert "xllamacpp==" in message


@pytest.mark.parametrize(
    ("struct", "table"),
    [(ContextParameters, structs.CONTEXT_DEFAULTS), (ModelParameters, structs.MODEL_DEFAULTS)],
)
def test_every_field_that_is_no_pointer_has_a_known_default(
    struct: type[ctypes.Structure], table: dict[str, object]
) -> None:
    fields = {field[0]: field[1] for field in struct._fields_}
    assert {name for name, kind in fields.items() if kind is not ctypes.c_void_p} == set(table)


def test_a_layout_that_is_shifted_by_one_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very thing that happens when a build adds a field: everything after it is read from the wrong place."""

    class Shifted(ctypes.Structure):
        _fields_ = [("added", ctypes.c_int32), *ContextParameters._fields_]

    class Stub:
        path = Path("libllama.so")

        @staticmethod
        def llama_model_default_params() -> ModelParameters:
            return ModelParameters(**structs.MODEL_DEFAULTS)

        @staticmethod
        def llama_context_default_params() -> ContextParameters:
            real = Shifted(**structs.CONTEXT_DEFAULTS)
            size = ctypes.sizeof(ContextParameters)
            return ContextParameters.from_buffer_copy(bytes(real)[:size].ljust(size, b"\0"))

    with pytest.raises(RuntimeUnavailableError, match="llama_context_default_params differs"):
        check_layout(Stub())  # type: ignore[arg-type]
    monkeypatch.setattr(
        Stub, "llama_context_default_params", staticmethod(lambda: ContextParameters(**structs.CONTEXT_DEFAULTS))
    )
    check_layout(Stub())  # type: ignore[arg-type]


def test_no_such_file_is_said() -> None:
    with pytest.raises(
        RuntimeUnavailableError, match=r"no llama.cpp library at /no/such/libllama.so: no such file"
    ):
        load_library("/no/such/libllama.so")


def test_a_file_that_is_no_library_is_said(tmp_path: Path) -> None:
    path = tmp_path / "libllama.so"
    path.write_bytes(b"not a library")
    with pytest.raises(RuntimeUnavailableError, match=rf"cannot load the llama.cpp library .*b{structs.BUILD}"):
        load_library(str(path))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_library_without_the_functions_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int nothing;\n")
    path = tmp_path / "libllama.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(tmp_path / "empty.c")], check=True)
    with pytest.raises(RuntimeUnavailableError, match=r"has no function llama_\w+: it is not build"):
        Library(path)


def test_a_package_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RuntimeUnavailableError, match=r"xllamacpp is not installed.*--library"):
        default_library_path()


def test_what_llama_cpp_says_of_an_error_is_kept_until_it_is_asked(tmp_path: Path) -> None:
    library = load_library()
    library.explain()
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF but no more")
    model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
    assert not model
    assert "gguf" in library.explain()
    assert library.explain() == ""
