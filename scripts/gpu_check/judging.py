"""Whether what was measured is right. Pure: of each item, values in, problems out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_check.checks import Checks

_GB = 1e9
_GIB = 2**30
ENERGY_TOLERANCE = 0.05
_BUSY = 0.9
_GAUGES = ("busy_share", "memory_used_bytes", "temperature_c", "power_w", "power_limit_w")
_COUNTERS = ("energy_j", "ecc_uncorrected")
_OF_PCIE = (0.5, 1.0)
"""A copy from pinned memory reaches 80 to 90 % of what lanes carry; less than half is a fault."""
_OF_PLANNED_STEP = (0.5, 2.5)
"""Published steps took 0.9 to 1.7 times as long as planned."""
_BOUND_BY_GPU_S = 0.05
"""Steps that are planned to be shorter wait for Python, of which the plan knows nothing."""
_OF_LOSS = {"fp32": 0.01, "bf16": 0.03}
_REFUSED_BY_NCCL = ("Duplicate GPU detected", "are using the same GPU")
_LEVEL_S = {"fast": 20, "medium": 75}


def lanes_bytes_per_s(link: Mapping[str, Any]) -> float | None:
    """Return what a PCIe link could carry, of generation 3 or later; 0.985 GB/s a lane, doubled."""
    generation, width = link.get("pcie_generation_max"), link.get("pcie_width_max")
    if not generation or not width or generation < 3:  # noqa: PLR2004  # another encoding before
        return None
    return 0.985e9 * float(2 ** (int(generation) - 3)) * float(width)


def judge_nvml(measured: Mapping[str, Any]) -> Checks:
    """Check that hpckit read a GPU through NVML, idle and under load."""
    checks = Checks()
    devices, idle, loaded = measured["devices"], measured["idle"], measured["loaded"]
    checks.at_least("GPUs that NVML shows", len(devices), 1)
    if not devices:
        return checks
    device, torch = devices[0], measured["torch"]
    checks.true("the driver says its version", device["driver"])
    if torch["name"]:
        checks.equal("name", device["name"], torch["name"])
        checks.close("memory_bytes", device["memory_bytes"], torch["memory_bytes"], 0.05)
    for name in (*_GAUGES, *_COUNTERS):
        checks.true(f"{name} is supported", name in device["supported"])
    rest, work = idle.get("gauges", {}), loaded.get("gauges", {})
    limit = work.get("power_limit_w") or 0.0
    checks.between("idle busy_share", rest.get("busy_share"), 0, 0.2)
    checks.between("loaded busy_share", work.get("busy_share"), _BUSY, 1)
    checks.between("idle power_w", rest.get("power_w"), 5, limit / 2, "W")
    checks.between("loaded power_w", work.get("power_w"), limit / 2, limit * 1.1, "W")
    checks.between("loaded temperature_c", work.get("temperature_c"), 15, 95)
    checks.between("loaded sm_clock_mhz", work.get("sm_clock_mhz"), 300, 3000)
    for name in ("sm_share", "tensor_share", "dram_share"):
        if name in work:
            checks.between(f"loaded {name}", work[name], 0.02, 1)
    joules = [one.get("counters", {}).get("energy_j") for one in (idle, loaded)]
    if None not in joules:
        checks.at_least("energy_j between idle and loaded", joules[1] - joules[0], 100, "J")
    for phase, sample in (("idle", idle), ("loaded", loaded)):
        checks.equal(f"{phase} troubles", sample.get("troubles"), [])
    unread = [one.get("message") for one in measured["events"] if one.get("kind") == "note"]
    checks.equal("answers that could not be read", unread, [])
    checks.equal("GPUs that preflight reads", len(measured["health"]), len(devices))
    checks.figures.append(
        f"{device['name']}, driver {device['driver']}: {measured['calls']} answers recorded; idle "
        f"{rest.get('power_w')} W, loaded {work.get('power_w')} W of {limit} W, "
        f"{work.get('temperature_c')} C, {work.get('sm_clock_mhz')} MHz"
    )
    return checks


def judge_energy(measured: Mapping[str, Any]) -> Checks:
    """Check the counter against power times time, and hpckit's record against the counter."""
    checks = Checks()
    checks.equal("failure", measured["failure"], "")
    for name in ("whole", "load"):
        span = measured.get(name) or {}
        power = span.get("power_times_time_j")
        counter = span.get("counter_j")
        checks.close(f"{name}: energy counter", counter, power, ENERGY_TOLERANCE, "J")
        checks.at_least(f"{name}: joules", counter, 1, "J")
        if counter and power:
            off = 100 * (counter / power - 1)
            checks.figures.append(
                f"{name}, {span['seconds']:.1f} s: counter {counter:.0f} J, power times time "
                f"{power:.0f} J, {off:+.2f} %"
            )
    recorded = (measured.get("recorded") or {}).get("total_j")
    counted = measured.get("window_counter_j")
    checks.close("hpckit's record", recorded, counted, ENERGY_TOLERANCE, "J")
    checks.equal("estimated share", (measured.get("recorded") or {}).get("estimated_share"), 0.0)
    if recorded and counted:
        off = 100 * (recorded / counted - 1)
        checks.figures.append(
            f"hpckit recorded {recorded:.0f} J in {measured['window_s']:.1f} s, the counter says "
            f"{counted:.0f} J, {off:+.2f} %"
        )
    return checks


def judge_preflight(measured: Mapping[str, Any]) -> Checks:
    """Check that both inspections came to a verdict in time, and that none is critical."""
    checks = Checks()
    for level in ("fast", "medium"):
        said = measured.get(level)
        if said is None:
            checks.problems.append(f"{level} was not measured")
            continue
        checks.equal(f"{level}: failure", said["failure"], "")
        checks.equal(f"{level}: inspections", len(said["inspections"]), 1)
        for one in said["inspections"]:
            checks.equal(f"{level}: level", one["level"], level)
            checks.between(f"{level}: took_s", one["took_s"], 0, _LEVEL_S[level], "s")
            checks.equal(f"{level}: lost", one["lost"], [])
            checks.figures.append(f"{level} took {one['took_s']:.1f} s")
        for node in said["nodes"]:
            checks.one_of(f"{level}: verdict", node["verdict"], ("ok", "warn"))
            checks.figures += [f"{level}: {one['verdict']}: {one['message']}" for one in node["findings"]]
        checks.equal(f"{level}: nodes", len(said["nodes"]), 1)
    return checks


def judge_transfers(measured: Mapping[str, Any]) -> Checks:
    """Check rates against the PCIe link, and the link against what it is able to."""
    checks = Checks()
    speed = measured.get("speed") or {}
    checks.equal("problem", speed.get("problem"), "")
    checks.equal("the same product twice", speed.get("repeats"), wanted=True)
    checks.at_least("matmul_flops", speed.get("matmul_flops"), 1e13)
    checks.at_least("copy_bytes_s", speed.get("copy_bytes_s"), 3e11)
    loaded = measured.get("loaded") or {}
    link = loaded.get("link") or {}
    links = {"medium's": speed.get("pcie") or {}, "own": link}
    for name, one in links.items():
        checks.equal(
            f"{name} generation under load", one.get("pcie_generation"), one.get("pcie_generation_max")
        )
        checks.equal(f"{name} lanes under load", one.get("pcie_width"), one.get("pcie_width_max"))
    most = lanes_bytes_per_s(link)
    if most is None:
        checks.problems.append(f"no rate is known of this PCIe link: {link}")
        most = math.nan
    low, high = (share * most for share in _OF_PCIE)
    for name in ("to_device_bytes_s", "to_host_bytes_s"):
        checks.between(name, speed.get(name), low, high)
    checks.between("own copies, bytes_s", loaded.get("bytes_s"), low, high)
    if loaded.get("nvml_bytes_s") is not None:
        checks.close("NVML's throughput", loaded["nvml_bytes_s"], loaded.get("bytes_s"), 0.25)
    rates = (speed.get(one) or 0 for one in ("to_device_bytes_s", "to_host_bytes_s", "copy_bytes_s"))
    there, back, copy = (rate / _GB for rate in rates)
    idle = measured.get("idle_link") or {}
    checks.figures.append(
        f"to the GPU {there:.1f} GB/s, back {back:.1f} GB/s, lanes carry {most / _GB:.1f} GB/s; "
        f"within it {copy:.0f} GB/s, {(speed.get('matmul_flops') or 0) / 1e12:.0f} TFLOP/s; PCIe "
        f"generation {idle.get('pcie_generation')} idle, {link.get('pcie_generation')} under load, "
        f"of {link.get('pcie_generation_max')}; {link.get('pcie_width')} lanes of "
        f"{link.get('pcie_width_max')}"
    )
    return checks


def judge_comm(measured: Mapping[str, Any]) -> Checks:
    """Check that both copies were measured, are right, and near what the links promise."""
    checks = Checks()
    checks.equal("healthy", measured.get("healthy"), wanted=True)
    operations = {one["operation"]: one for one in measured.get("operations") or ()}
    for name in ("host_to_device", "device_to_host"):
        one = operations.get(name, {})
        checks.between(f"{name}: share of the promise", one.get("share"), 0.7, 1.5)
        checks.equal(f"{name}: wrong ranks", list(one.get("wrong_ranks") or ()), [])
        if one.get("bus_bytes_per_s"):
            rate, share = one["bus_bytes_per_s"] / _GB, 100 * (one["share"] or 0)
            checks.figures.append(f"{name}: {rate:.1f} GB/s, {share:.0f} % of {one['promise']}")
    checks.figures += [f"{one['level']}: {one['message']}" for one in measured.get("findings") or ()]
    return checks


def judge_memory(measured: Mapping[str, Any]) -> Checks:
    """Check each training's memory against its plan; its step roughly."""
    checks = Checks(left_out=list(measured.get("left_out") or ()))
    rows: Sequence[Mapping[str, Any]] = measured["rows"]
    checks.at_least("trainings", len(rows), 1)
    for row in rows:
        _judge_training(checks, row["case"], row, on_gpu=measured["on_gpu"])
    return checks


def judge_charlm(measured: Mapping[str, Any]) -> Checks:
    """Check charlm's memory against its plan."""
    checks = Checks()
    _judge_training(checks, "charlm", measured, on_gpu=measured["on_gpu"])
    return checks


def _judge_training(checks: Checks, name: str, row: Mapping[str, Any], *, on_gpu: bool) -> None:
    checks.equal(f"{name}: failure", row["failure"], "")
    if not on_gpu or row["failure"]:
        return
    used, low, high = row.get("used_bytes"), row["low_bytes"], row["high_bytes"]
    checks.between(f"{name}: used GiB", used and used / _GIB, low / _GIB, high / _GIB)
    words = f"{name}: {(used or 0) / _GIB:.2f} GiB, planned {row['planned_bytes'] / _GIB:.2f} ("
    words += f"{low / _GIB:.2f} to {high / _GIB:.2f}); torch allocated "
    words += f"{(row.get('peak_bytes') or 0) / _GIB:.2f}, reserved "
    words += f"{(row.get('reserved_bytes') or 0) / _GIB:.2f}"
    planned, step = row.get("planned_step_s"), row.get("step_s")
    if planned and step is not None:
        if planned >= _BOUND_BY_GPU_S:
            fewest, most = _OF_PLANNED_STEP
            checks.between(f"{name}: step_s", step, fewest * planned, most * planned, "s")
        words += f"; step {step * 1000:.1f} ms, planned {planned * 1000:.1f} ms"
    checks.figures.append(words)


def judge_layouts(measured: Mapping[str, Any]) -> Checks:
    """Check that every layout learns what one plain process learns."""
    checks = Checks(left_out=list(measured.get("left_out") or ()))
    rows: Mapping[str, Mapping[str, Any]] = measured["rows"]
    plain = rows.get("none, fp32", {}).get("loss")
    checks.at_least("layouts", len(rows), 3)
    for name, row in rows.items():
        checks.equal(f"{name}: failure", row["failure"], "")
        if row["failure"]:
            continue
        tolerance = _OF_LOSS["fp32" if "fp32" in name else "bf16"]
        checks.close(f"{name}: loss", row.get("loss"), plain, tolerance)
        if measured["on_gpu"]:
            checks.between(f"{name}: loss falls", row.get("loss"), 0, row.get("first_loss") or 0)
        if "compiled" in name:
            checks.at_least(f"{name}: compiled graphs", row.get("graphs"), 1)
        checks.figures.append(
            f"{name}: loss {row.get('loss') or math.nan:.4f}, step "
            f"{1000 * (row.get('step_s') or math.nan):.1f} ms, peak "
            f"{(row.get('peak_bytes') or 0) / _GIB:.2f} GiB"
        )
    return checks


def judge_profile(measured: Mapping[str, Any]) -> Checks:
    """Check that a profile was made, and that its times add up."""
    checks = Checks()
    summary = measured.get("summary") or {}
    checks.equal("done", measured.get("done"), wanted=True)
    checks.equal("on_gpu", summary.get("on_gpu"), measured["on_gpu"])
    checks.equal("steps", summary.get("steps"), 5)
    checks.at_least("top entries", len(summary.get("top") or ()), 1)
    wall = summary.get("wall_s") or 0.0
    checks.at_least("wall_s", wall, 1e-6, "s")
    if measured["on_gpu"]:
        checks.between("compute_s", summary.get("compute_s"), 0.2 * wall, wall, "s")
        parts = ("compute_s", "exposed_s", "copy_s", "idle_s")
        whole = sum(summary.get(part) or 0.0 for part in parts)
        checks.close("compute, exposed, copies and idle", whole, wall, 0.1, "s")
    if wall:
        shares = {
            one: 100 * (summary.get(f"{one}_s") or 0) / wall
            for one in ("compute", "communication", "exposed", "copy", "idle")
        }
        words = ", ".join(f"{name} {share:.0f} %" for name, share in shares.items())
        checks.figures.append(f"a step {1000 * wall / max(summary.get('steps') or 1, 1):.1f} ms: {words}")
        checks.figures += [f"{one['seconds'] * 1000:.1f} ms {one['name']}" for one in summary["top"][:3]]
    return checks


def judge_oom(measured: Mapping[str, Any]) -> Checks:
    """Check that the failure says how memory was used, and that the snapshot holds it."""
    checks = Checks()
    checks.equal("state", measured["state"], "failed")
    checks.equal("cause", measured["cause"], "cuda_oom")
    checks.true("the message says how memory was used", "GPU memory: of" in (measured["message"] or ""))
    figures, total = measured.get("figures") or {}, measured.get("gpu_bytes")
    checks.close("total_bytes", figures.get("total_bytes"), total, 0.02)
    reserved = figures.get("reserved_bytes")
    checks.between("allocated_bytes", figures.get("allocated_bytes"), 1, reserved or 0)
    checks.between("reserved_bytes", reserved, 0.5 * (total or math.nan), total or math.nan)
    snapshot = measured.get("snapshot") or {}
    checks.close("bytes of the snapshot's segments", snapshot.get("segment_bytes"), reserved, 0.01)
    checks.at_least("entries that name the line", snapshot.get("entries_of_our_line"), 1)
    checks.figures.append((measured["message"] or "").splitlines()[-1] if measured["message"] else "")
    return checks


def judge_recorder(measured: Mapping[str, Any]) -> Checks:
    """Check that each way names rank 1, which was stopped, or the collective of one alone."""
    checks = Checks()
    for name, way in measured["ways"].items():
        words = f"{way.get('message') or ''} {way.get('verdicts') or ''}"
        told = str(way.get("collectives") or "")
        if any(word in way.get("log", "") for word in _REFUSED_BY_NCCL):
            checks.left_out.append(f"{name}: NCCL refuses two ranks on one GPU")
            continue
        checks.equal(f"{name}: cause", way.get("cause"), way["wanted"])
        if name != "nccl alone":
            checks.true(f"{name}: rank 1 is named", "rank 1" in words)
        if way["wanted"] == "communication":
            checks.at_least(f"{name}: bytes of the dump", way.get("dump_bytes"), 1)
        checks.true(f"{name}: rank 0 tells its collectives", "all_reduce" in told)
        checks.figures.append(
            f"{name}: {way.get('cause')}: {' '.join((way.get('message') or '').split())[:300]}"
        )
    checks.at_least("ways", len(measured["ways"]), 1)
    return checks
