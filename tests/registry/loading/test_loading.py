"""Kernel files are loaded by a process of its own: what a file does to that process is said of that file, and the others are loaded."""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fusebench.errors import UsageError
from fusebench.registry import Declarations, load_collection
from fusebench.registry.loading.messages import AskOps, LoaderSetup
from fusebench.registry.loading.process import FileEndedLoader, LoaderLostError, LoaderProcess
from fusebench.registry.loading.watching import Watch
from fusebench.schema import Case

pytestmark = pytest.mark.usefixtures("forked_workers")
MakeRoot = Callable[..., Path]

KERNEL = """

from fusebench import kernel

@kernel("scale", "{name}", version=1, role="fused", language="torch")
def {name}(x, *, factor=2.0):
    x.mul_(factor)
"""

ENDING = {
    "exit": ("import os\nos._exit(0)", r"import ended the process: it left with exit status 0"),
    "leave": ("import sys\nsys.exit()", r"line 2: SystemExit"),
    "interrupt": ("raise KeyboardInterrupt", r"its code raised KeyboardInterrupt"),
    "segfault": ("import ctypes\nctypes.string_at(0)", r"import ended the process: it died of signal SIGSEGV"),
    "close": ("import os\nos.closerange(3, 4096)\nos._exit(0)", r"import ended the process"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", r"signal SIGKILL"),
    "replaced": ("import os\nos.execv('/bin/true', ['true'])", r"import ended the process: it left with exit status 0"),
    "moved": ("import os\nos.chdir('/')", r"its import changed the working directory \(to /\)"),
    "handler": ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)", r"its import changed the handler of SIGTERM"),
}
"""What a file does while it is imported, and what is said of it."""


def declared(root: Path, silence_s: float | None = None) -> Declarations:
    found = Declarations([root])
    found.silence_s = silence_s
    found.load_kernels()
    return found


def case(size: int = 8) -> Case:
    return Case(suite="s", name="c", op="scale", params={"size": size})


def test_a_file_that_ends_its_process_is_a_problem_and_the_others_are_loaded(make_root: MakeRoot) -> None:
    files = {f"{name}.py": f"{source}\n{KERNEL.format(name=name)}" for name, (source, _) in ENDING.items()}
    found = declared(make_root(files=files | {"good.py": KERNEL.format(name="good"), "zz.py": KERNEL.format(name="zz")}))
    assert set(found.kernels) == {"scale/split@1", "scale/good@1", "scale/zz@1"}
    said = {problem.file.stem: problem for problem in found.problems}
    assert set(said) == set(ENDING)
    for name, (_, expected) in ENDING.items():
        assert re.search(expected, said[name].message), said[name]
        assert said[name].op == "scale"
    assert {Path(file).stem for file in found.excluded} == {"exit", "segfault", "close", "killed", "replaced"}
    assert found.support(case()).declined == {}, "the new process answers for the kernels that are left"
    assert found.listing is None, "problems are said again the next time"
    found.close()


def test_a_file_that_never_returns_is_a_problem(make_root: MakeRoot) -> None:
    root = make_root(files={"hang.py": "while True: pass\n", "good.py": KERNEL.format(name="good")})
    found = declared(root, silence_s=1.0)
    (problem,) = found.problems
    assert problem.message == "its import showed no sign of life for 1 s"
    assert "scale/good@1" in found.kernels
    found.close()


def test_what_files_print_goes_to_stderr_and_a_flood_is_cut(make_root: MakeRoot, capfd: pytest.CaptureFixture[str]) -> None:
    flood = "import os\nprint('hello from a kernel')\nfor _ in range(2000): os.write(1, b'x' * 4096)\nprint('\\x1b[2J', flush=True)\n"
    found = declared(make_root(files={"loud.py": flood + KERNEL.format(name="loud")}))
    assert set(found.kernels) == {"scale/split@1", "scale/loud@1"}
    assert not found.problems
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("hello from a kernel\n")
    assert len(err) < 40_000
    assert "the rest is dropped" in err
    assert "\x1b" not in err
    found.close()


def test_the_file_that_is_imported_by_another_one_is_blamed(make_root: MakeRoot) -> None:
    files = {"a.py": "from .helper import amount\n" + KERNEL.format(name="a"), "helper.py": "import os\nos._exit(3)\n"}
    found = declared(make_root(files=files))
    first, second = found.problems
    assert (first.file.name, second.file.name) == ("a.py", "helper.py")
    assert "helper.py is not imported: its import ended the process" in first.message
    assert "exit status 3" in second.message
    assert set(found.kernels) == {"scale/split@1"}
    found.close()


def test_a_declaration_that_ends_the_process_when_it_is_asked_is_a_problem(make_root: MakeRoot) -> None:
    asked = KERNEL.format(name="asked") + "\n@asked.supports\ndef _(params):\n    import os\n    os._exit(0)\n"
    found = declared(make_root(files={"asked.py": asked}))
    assert "scale/asked@1" in found.kernels
    found.learn([case()])
    assert set(found.kernels) == {"scale/split@1"}
    (problem,) = found.problems
    assert problem.message == "a question to it about a case ended the process: it left with exit status 0"
    assert found.ops["scale"].facts({"size": 8}).shape == "8"
    found.close()


def test_a_declaration_that_leaves_when_it_is_asked_declines(make_root: MakeRoot) -> None:
    asked = KERNEL.format(name="asked") + "\n@asked.supports\ndef _(params):\n    raise SystemExit\n"
    found = declared(make_root(files={"asked.py": asked}))
    assert "its code raised SystemExit" in found.support(case()).declined["scale/asked@1"]
    assert found.support(case()).declined.keys() == {"scale/asked@1"}
    found.close()


def test_an_op_that_ends_the_process_is_a_problem_and_other_ops_work(make_root: MakeRoot) -> None:
    root = make_root()
    text = (root / "scale" / "op.py").read_text()
    other = root / "other"
    other.mkdir()
    (other / "op.py").write_text(text.replace('"scale"', '"other"') + "\nimport os\nos._exit(0)\n")
    found = Declarations([root])
    assert set(found.ops) == {"scale"}
    (problem,) = found.problems
    assert (problem.op, problem.file) == ("other", other / "op.py")
    (root / "scale" / "op.py").write_text(text.replace("return str(params.size)", "__import__('os')._exit(7)"))
    found = Declarations([root])
    with pytest.raises(UsageError, match=r"scale/op\.py: a question to it about a case ended the process: it left with exit status 7"):
        found.ops["scale"].facts({"size": 8})
    found.close()


def test_a_method_of_an_op_that_fails_is_an_error_where_its_value_is_needed(make_root: MakeRoot) -> None:
    root = make_root()
    op = root / "scale" / "op.py"
    op.write_text(op.read_text().replace("        return params.size\n", "        raise NotImplementedError('to do')\n"))
    found = Declarations([root])
    facts = found.ops["scale"].facts({"size": 8})
    assert facts.known("shape") == "8"
    with pytest.raises(UsageError, match=r"op scale: its method `flops` failed on the case \{'size': 8\}: NotImplementedError: to do"):
        facts.known("flops")
    assert found.ops["scale"].refusal({"size": 8}) is None
    found.close()


def test_the_declarations_are_those_of_a_load_in_this_process(make_root: MakeRoot) -> None:
    root = make_root(
        files={"odd.py": KERNEL.format(name="odd") + "\n@odd.supports\ndef _(params):\n    return 'odd' if params.size % 2 else True\n"}
    )
    here, found = load_collection([root], entry_points=False), declared(root)
    assert {name: kernel.declared for name, kernel in here.kernels.items()} == found.kernels
    assert here.ops["scale"].declaration == found.ops["scale"].declaration
    for size in (7, 8):
        assert here.support(case(size)) == found.support(case(size))
        assert here.ops["scale"].facts({"size": size}) == found.ops["scale"].facts({"size": size})
    for wrong in ({"size": 0}, {"size": "many"}, {"sizes": 3}, {}):
        assert here.ops["scale"].refusal(wrong) == found.ops["scale"].refusal(wrong) is not None
    found.close()


def test_files_that_ended_a_process_are_left_out_of_every_other_one(make_root: MakeRoot) -> None:
    root = make_root(files={"exit.py": "import os\nos._exit(0)\n"})
    watch = Watch({str(root / "scale" / "exit.py"): "it ended a process"})
    (problem,) = load_collection([root], entry_points=False, watch=watch).problems
    assert (problem.file.name, problem.message) == ("exit.py", "it ended a process")


def test_the_end_of_a_process_takes_along_what_its_files_started(make_root: MakeRoot, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    source = f"import subprocess\nopen({str(mark)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    found = declared(make_root(files={"starts.py": source + KERNEL.format(name="starts")}))
    pid = int(mark.read_text())
    assert Path(f"/proc/{pid}").exists()
    found.close()
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():  # a zombie has none
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("reply", [b"", b"\xff" * 9, b"\x82\xa5token\xa1x\xa6answer\x80"])
def test_a_reply_without_the_token_of_its_question_is_none(make_root: MakeRoot, reply: bytes) -> None:
    """Planted: a file that finds the connection and answers in the loader's place."""
    forge = f"""
        import os, stat, struct
        for one in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(one).st_mode):
                    os.write(one, struct.pack("!i", {len(reply)}) + {reply!r})
            except OSError:
                pass
        os._exit(0)
    """
    root = make_root()
    (root / "scale" / "op.py").write_text(textwrap.dedent(forge))
    process = LoaderProcess(LoaderSetup(roots=(root,)))
    with pytest.raises((FileEndedLoader, LoaderLostError), match=r"op\.py"):
        process.ask(AskOps())


def test_a_line_that_something_left_behind_holds_open_is_not_closed_under_its_reader(make_root: MakeRoot, tmp_path: Path) -> None:
    """Planted: a process that outlives the loader and ends in the middle of a reply.  Its reader must not go on in another file."""
    go, gone = tmp_path / "go", tmp_path / "gone"
    left_behind = f"""
        import os, stat, struct, time

        def tell(content):
            for one in range(3, 64):
                try:
                    if stat.S_ISSOCK(os.fstat(one).st_mode):
                        os.write(one, content)
                except OSError:
                    pass

        tell(struct.pack("!i", 100) + b"x" * 10)
        if os.fork() == 0:
            os.setsid()
            while not os.path.exists({str(go)!r}):
                time.sleep(0.001)
            tell(b"x")
            open({str(gone)!r}, "w").close()
            time.sleep(1)
        os._exit(0)
    """
    root = make_root()
    (root / "scale" / "op.py").write_text(textwrap.dedent(left_behind))
    process = LoaderProcess(LoaderSetup(roots=(root,)), silence_s=1.0)
    number = process._connection.fileno()
    with pytest.raises((FileEndedLoader, LoaderLostError)):
        process.ask(AskOps())
    ours = [os.pipe() for _ in range(8)]
    try:
        reading, writing = next((one for one in ours if number in one), ours[0])
        os.write(writing, b"ours")
        go.touch()
        until = time.monotonic() + 10
        while not gone.exists() and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.1)
        os.set_blocking(reading, False)
        assert os.read(reading, 4) == b"ours"
    finally:
        for one in ours:
            os.close(one[0])
            os.close(one[1])


def test_an_early_end_by_no_file_is_an_error_of_its_own(make_root: MakeRoot) -> None:
    process = LoaderProcess(LoaderSetup(roots=(make_root(),)))
    process.ask(AskOps())
    os.kill(process.pid or 0, 9)
    with pytest.raises(LoaderLostError, match="died of signal SIGKILL, while it executed no file"):
        process.ask(AskOps())
