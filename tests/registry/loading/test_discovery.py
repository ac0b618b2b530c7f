"""Loading by path: private prefixes, side-by-side roots, relative imports, entry points."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusebench.errors import UnknownNameError, UsageError
from fusebench.registry import Collection, load_collection, torch_operator
from fusebench.registry.loading.installed import KERNELS_GROUP
from fusebench.registry.lookup import require_match
from fusebench.schema import KernelId

MakeRoot = Callable[..., Path]


def load(*roots: Path, **options: bool) -> Collection:
    return load_collection(roots, **({"entry_points": False} | options))


def factor_kernel(text: str) -> str:
    return f"""
    from fusebench import kernel

    @kernel("scale", "fast", version=1, role="compiled", language="torch")
    def fast(x, *, factor=2.0):
        {text}
    """


def test_a_root_is_loaded_under_a_private_prefix_and_leaves_sys_path_alone(make_root: MakeRoot) -> None:
    before, modules = list(sys.path), set(sys.modules)  # another test may have imported the library named `kernels`
    collection = load(make_root())
    assert not collection.problems
    assert list(collection.kernels) == ["scale/split@1"]
    assert collection.kernel("scale/split@1").function.__module__.startswith("_fusebench_root_")
    assert sys.path == before
    assert not {"kernels", "scale"} & (set(sys.modules) - modules)


def test_two_copies_of_a_root_live_side_by_side_with_their_own_behaviour(make_root: MakeRoot) -> None:
    helper = "from fusebench import kernel\nfrom ._amount import EXTRA\n\n"
    source = helper + "@kernel('scale', 'fast', version=1, role='compiled', language='torch')\ndef fast(x, *, factor=2.0):\n"
    source += "    return (x * factor + EXTRA,)\n"
    head = load(make_root("head", {"fast.py": source, "_amount.py": "EXTRA = 1"}))
    base = load(make_root("base", {"fast.py": source, "_amount.py": "EXTRA = 100"}))
    x = torch.ones(3)
    assert head.kernel("scale/fast@1")(x)[0].tolist() == [3.0] * 3
    assert base.kernel("scale/fast@1")(x)[0].tolist() == [102.0] * 3
    assert head.kernel("scale/fast@1")(x)[0].tolist() == [3.0] * 3
    assert head.ops["scale"].Params is not base.ops["scale"].Params


def test_the_same_folder_can_be_loaded_again_after_an_edit(make_root: MakeRoot) -> None:
    root = make_root(files={"fast.py": factor_kernel("return (x + 1,)")})
    first, times = load(root), (root / "scale").stat()
    make_root(files={"fast.py": factor_kernel("return (x + 1000,)"), "late.py": "LATE = 1"})
    # A folder's timestamp is too coarse to show every edit, and Python's finders go by it.
    os.utime(root / "scale", ns=(times.st_atime_ns, times.st_mtime_ns))
    second = load(root)
    assert not second.problems, "a file written since the first load is found"
    assert first.kernel("scale/fast@1")(torch.zeros(1))[0].item() == 1
    assert second.kernel("scale/fast@1")(torch.zeros(1))[0].item() == 1000


def test_relative_imports_reach_other_files_and_other_ops_in_any_order(make_root: MakeRoot) -> None:
    root = make_root(
        files={
            # `early` is loaded before `scale`, whose op.py must still be recognised as the definition of scale.
            "early/op.py": (make_root("spare") / "scale" / "op.py").read_text().replace('name = "scale"', 'name = "early"')
            + "\nfrom ..scale.op import Params as ScaleParams\n",
        }
    )
    collection = load(root)
    assert not collection.problems
    assert list(collection.ops) == ["early", "scale"]


def test_a_kernel_file_may_import_another_and_neither_is_lost(make_root: MakeRoot) -> None:
    first = (
        factor_kernel("return (x,)")
        .replace("version=1", "version=2")
        .replace("from fusebench", "from .fast import fast as old\n    from fusebench")
    )
    collection = load(make_root(files={"fast.py": factor_kernel("return (x,)"), "a_new.py": first}))
    assert not collection.problems
    assert set(collection.kernels) == {"scale/fast@1", "scale/fast@2", "scale/split@1"}
    assert Path(collection.kernel("scale/fast@1").file).name == "fast.py"


def test_a_kernel_imported_by_a_file_that_then_fails_is_kept(make_root: MakeRoot) -> None:
    broken = "from .fast import fast\nraise RuntimeError('after the import')\n"
    collection = load(make_root(files={"fast.py": factor_kernel("return (x,)"), "a_broken.py": broken}))
    assert set(collection.kernels) == {"scale/fast@1", "scale/split@1"}
    assert [problem.file.name for problem in collection.problems] == ["a_broken.py"]


def test_ops_alone_are_loaded_without_torch(make_root: MakeRoot) -> None:
    root = make_root(files={"fast.py": "raise AssertionError('kernel files must not run')"})
    code = f"""
import sys
from pathlib import Path
from fusebench.registry import load_collection
collection = load_collection([Path({str(root)!r})], kernels=False)
assert list(collection.ops) == ["scale"] and not collection.kernels and not collection.problems, collection
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kernels folder .*absent does not exist; pass --kernels DIR"):
        load(tmp_path / "absent")


def test_a_root_named_twice_is_loaded_once(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root()
    monkeypatch.chdir(root.parent)
    collection = load(root, Path("kernels"), root / "scale" / "..")
    assert collection.roots == (root,)
    assert not collection.problems


def fake_entry_points(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    made = [importlib.metadata.EntryPoint(name, value, KERNELS_GROUP) for name, value in points.items()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: made if group == KERNELS_GROUP else [])


def test_an_installed_collection_is_found_by_its_entry_point(make_root: MakeRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_root("site/vendor_kernels")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fake_entry_points(monkeypatch, vendor="vendor_kernels")
    collection = load_collection([])
    assert list(collection.kernels) == ["scale/split@1"]
    assert collection.roots == (tmp_path / "site" / "vendor_kernels",)


def test_broken_entry_points_are_problems_and_the_rest_works(make_root: MakeRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root()
    (tmp_path / "site" / "raises_on_import").mkdir(parents=True)
    (tmp_path / "site" / "raises_on_import" / "__init__.py").write_text("import os\nos._exit(0)")
    (tmp_path / "site" / "plain_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fake_entry_points(
        monkeypatch, absent="not_installed_anywhere", nested="not_installed.kernels", raising="raises_on_import.sub", module="plain_module"
    )
    collection = load_collection([root])
    assert list(collection.kernels) == ["scale/split@1"]
    messages = {str(problem.file): problem.message for problem in collection.problems}
    assert set(messages) == {"not_installed_anywhere", "not_installed.kernels", "raises_on_import.sub", "plain_module"}
    assert "No module named 'raises_on_import.sub'" in messages["raises_on_import.sub"], "the package was not executed"
    assert "entry point 'module'" in messages["plain_module"]


def test_the_package_around_an_installed_collection_is_not_executed(
    make_root: MakeRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root("site/vendor/kernels")
    (tmp_path / "site" / "vendor" / "__init__.py").write_text("import os\nos._exit(0)")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fake_entry_points(monkeypatch, vendor="vendor.kernels")
    assert load_collection([]).roots == (tmp_path / "site" / "vendor" / "kernels",)


def test_a_project_that_is_also_installed_is_one_root(make_root: MakeRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root("site/vendor_kernels")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fake_entry_points(monkeypatch, vendor="vendor_kernels")
    assert not load_collection([root]).problems


def test_kernels_are_found_by_id_name_and_glob(make_root: MakeRoot) -> None:
    versions = "\n".join(factor_kernel("return (x,)").replace("version=1", f"version={version}") for version in (1, 2))
    collection = load(make_root(files={"fast.py": versions.replace("\n    ", "\n")}))

    def found(pattern: str) -> list[str]:
        return [str(kernel.id) for kernel in collection.kernels_of("scale", pattern)]

    assert found("fast") == found("fast@*") == found("scale/fast@*") == ["scale/fast@1", "scale/fast@2"]
    assert found("*@2") == ["scale/fast@2"]
    assert found("*") == ["scale/fast@1", "scale/fast@2", "scale/split@1"]
    collection.require_match("spl*")
    with pytest.raises(UnknownNameError, match=r"unknown kernel 'scale/fats@1'; did you mean 'scale/fast@1'\?"):
        collection.require_match("scale/fats@1")
    with pytest.raises(UnknownNameError, match=r"unknown kernel 'spilt'; did you mean 'split'\?"):
        collection.require_match("spilt")
    with pytest.raises(UnknownNameError, match=r"unknown kernel 'fsat@2'; did you mean 'fast@2'\?"):
        collection.require_match("fsat@2")
    with pytest.raises(UnknownNameError, match=r"unknown kernel 'scale/splt@1'; did you mean 'scale/split@1'\?"):
        collection.kernel("scale/splt@1")
    with pytest.raises(UnknownNameError, match=r"unknown op 'scal'; did you mean 'scale'\?"):
        collection.op("scal")


@pytest.mark.parametrize(
    ("problems", "where"),
    [((), ""), (("a.py: no",), "not loaded: a.py: no: "), (("a.py: no", "b.py: no"), "not loaded: a.py: no and 1 more: ")],
)
def test_an_unknown_kernel_may_be_in_a_file_that_failed_to_load(problems: tuple[str, ...], where: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        require_match("fats", [KernelId.parse("scale/fast@1")], problems=problems)
    assert str(caught.value) == f"{where}unknown kernel 'fats'; did you mean 'fast'? Known: fast."


def test_only_the_kernels_of_the_ops_that_are_asked_for_are_loaded(make_root: MakeRoot) -> None:
    root = make_root(files={"broken.py": "raise RuntimeError('loaded')"})
    for only, loaded in (({"scale"}, True), ({"another"}, False)):
        collection = load_collection([root], entry_points=False, only=only)
        assert list(collection.ops) == ["scale"], "ops are known in any case"
        assert bool(collection.problems) == bool(collection.kernels) == loaded


NAMED = """
from fusebench import kernel

@kernel("scale", "{name}", version={version}, role="fused", language="{language}")
def {name}(x, *, factor=2.0): ...
"""
LATER = (
    'from fusebench import kernel\n\nkernel("scale", "".join("fast"), version=1, role="peer", language="torch")(lambda x, *, factor=2.0: x)'
)


def one_kernel(name: str, version: int = 1, language: str = "cuda") -> str:
    return NAMED.format(name=name, version=version, language=language)


def test_of_one_kernel_only_the_files_that_mention_it_are_executed(make_root: MakeRoot) -> None:
    files = {"slow.py": "raise RuntimeError('executed')", "a.py": one_kernel("fast"), "b.py": one_kernel("fast", 2)}
    root = make_root(files=files | {"another/op.py": "raise RuntimeError('an op.py is always executed')"})
    collection = load_collection([root], entry_points=False, kernel=KernelId("scale", "fast", 2))
    assert list(collection.kernels) == ["scale/fast@1", "scale/fast@2"]
    assert [problem.op for problem in collection.problems] == ["another"]


def test_a_kernel_whose_file_does_not_spell_its_name_is_found_all_the_same(make_root: MakeRoot) -> None:
    root = make_root(files={"b.py": LATER.replace('"fast"', '("fa", "st")')})
    collection = load_collection([root], entry_points=False, kernel=KernelId("scale", "fast", 1))
    assert set(collection.kernels) == {"scale/fast@1", "scale/split@1"}


def test_operators_that_loading_left_out_are_made_before_a_kernel_that_compiles_is_called(make_root: MakeRoot) -> None:
    """torch.compile traces a chain in torch, which may call other kernels; an operator that nobody traces costs its imports."""
    both = one_kernel("fast") + one_kernel("chain", language="torch").replace("fused", "compiled")
    collection = load_collection([make_root(files={"both.py": both})], entry_points=False, operators=False)
    assert collection.prepared("scale/fast@1").torch_op is None
    assert collection.prepared("scale/split@1").torch_op is None
    collection.prepared("scale/chain@1")
    assert collection.kernel("scale/fast@1").torch_op is not None
    assert collection.without_operators == collection.problems == []


def test_an_operator_that_torch_refuses_late_is_a_problem_and_its_kernel_goes_on_without(
    make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kernel: object, namespace: str) -> None:
        raise ValueError("no such schema")

    monkeypatch.setattr(torch_operator, "register", refuse)
    root = make_root(files={"both.py": one_kernel("fast") + one_kernel("chain", language="torch").replace("fused", "compiled")})
    collection = load_collection([root], entry_points=False, operators=False)
    collection.prepared("scale/chain@1")
    assert any("scale/fast@1 cannot become a torch operator: ValueError: no such schema" in str(one) for one in collection.problems)
    assert "scale/fast@1" in collection.kernels


def test_kernels_are_loaded_without_the_compiler_where_nothing_is_compiled() -> None:
    """Its import takes longer than torch's, in every worker."""
    code = f"""
import sys
from pathlib import Path
from fusebench.registry import load_collection
collection = load_collection([Path({str(Path(__file__).parents[3] / "kernels")!r})], entry_points=False, operators=False)
assert len(collection.kernels) > 60, collection.problems
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
