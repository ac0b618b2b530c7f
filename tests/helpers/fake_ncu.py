"""Acts as Nsight Compute, as `behaviour.json` beside it says; tests install it with the fixture `fake_ncu`.

A capture writes a report that holds rows of the real H200's table.  The profiled process is really run (on the CPU), or only played: its
diary is written as the process would.  `kernels` says what becomes of each kernel, and `base_kernels` of those of another folder.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(sys.argv[0]).resolve().parent
BEHAVIOUR = json.loads((HERE / "behaviour.json").read_text())
TABLE = (HERE / "table.csv").read_text().splitlines(keepends=True)
MAGIC = "a report of the fake\n"


def main(arguments: list[str]) -> int:
    with (HERE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"arguments": arguments, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}) + "\n")
    if arguments == ["--version"]:
        print(f"NVIDIA (R) Nsight Compute Command Line Profiler\nVersion {BEHAVIOUR.get('version', '2025.3.1.0')} (build 1)")
        return 0
    if "--query-metrics" in arguments:
        return query()
    if "--import" in arguments:
        return show(Path(arguments[arguments.index("--import") + 1]))
    return capture(arguments)


def query() -> int:
    if "query_error" in BEHAVIOUR:
        print(f"==ERROR== {BEHAVIOUR['query_error']}")
        return 1
    print('"Metric name","Metric type","Metric unit","Metric description","NVIDIA H200"')
    for name in ("dram__bytes_read", "dram__bytes_write", "gpu__time_duration", "lts__t_requests", "smsp__inst_executed"):
        print(f'"{name}","Counter","byte","# of something","1"')
    return 0


def show(report: Path) -> int:
    content = report.read_text(errors="replace")
    if not content.startswith(MAGIC):
        print(f"==ERROR== Failed to load report file '{report}'.\n==ERROR== The file is not an Nsight Compute profiler report.")
        return 1
    print(content.removeprefix(MAGIC), end="")
    return 0


def capture(arguments: list[str]) -> int:
    if BEHAVIOUR.get("forbidden"):
        print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
        return 1
    print("==PROF== Connected to process 1 (python)", flush=True)
    task = json.loads(Path(arguments[-1]).read_text())
    side = "kernels" if task["kernel_roots"] == task["roots"] else "base_kernels"
    plan = BEHAVIOUR.get(side, {}).get(task["kernel"], {})
    if plan.get("hangs") == "before":
        time.sleep(60)
    code = run(arguments, task) if BEHAVIOUR.get("run_child") else play(task, plan)
    if plan.get("fails"):
        print(f"==ERROR== {plan['fails']}")
        return 1
    if code != 0 or plan.get("no_launch"):
        print("==WARNING== No kernels were profiled.")
        return code
    rows = plan.get("rows", [0])
    report = Path(arguments[arguments.index("--export") + 1])
    report.write_text("cut" if plan.get("truncated") else MAGIC + "".join([*TABLE[:2], *(TABLE[2 + row] for row in rows)]))
    return 0


def run(arguments: list[str], task: dict[str, object]) -> int:
    """The process itself, told that its device is the CPU."""
    Path(arguments[-1]).write_text(json.dumps(task | {"device": "cpu"}))
    return subprocess.run(arguments[arguments.index(sys.executable) :], check=False).returncode


def play(task: dict[str, object], plan: dict[str, object]) -> int:
    """What the process would leave behind."""
    with Path(str(task["diary"])).open("a") as diary:
        say = lambda **message: print(json.dumps(message), file=diary, flush=True)  # noqa: E731
        say(type="doing", what="compiling and calling it for the first time")
        if plan.get("hangs"):
            time.sleep(60)
        if plan.get("raises"):
            say(type="raised", reason=plan["raises"])
            return 1
        if plan.get("dies"):
            return 139
        say(type="called")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
