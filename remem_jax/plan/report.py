"""A plan for people."""

from typing import Any


def report(plan: dict[str, Any]) -> str:
    """Lines of a plan as `make_plan` returns it."""
    tokens, mesh = plan["tokens"], " x ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
    where = f"{plan['topology']}, {plan['chips']} chips" if plan["topology"] else f"{plan['devices']} devices"
    holds = "" if plan["hbm_bytes"] is None else f", {_gib(plan['hbm_bytes'])} GiB a device"
    lines = [
        f"{plan['model']}: {plan['parameters']:,} parameters on {where}{holds}; mesh {mesh}",
        f"longest turn: prefix {tokens['prefix']:,}, suffix {tokens['suffix']:,}, reply {tokens['reply']:,} tokens, "
        f"{plan['group']} rollouts; training rows of {tokens['row']:,} tokens",
        *(f"note: {note}" for note in plan["notes"]),
        "live, GiB a device: " + ", ".join(f"{name} {_gib(size)}" for name, size in plan["live"].items()),
        f"functions, a device ({plan['compiled_questions']} questions in flight; peak with all live arrays):",
        f"  {'':15}{'peak GiB':>9}{'temp GiB':>9}{'fits':>5}{'TFLOP':>9}{'model':>9}{'seconds':>9}  bound, collectives",
    ]
    lines += [_function(found, plan["devices"]) for found in plan["functions"]]
    for found in plan["functions"]:
        if found["fits"] is False:
            why = f": {found['problem']}" if found.get("problem") else ""
            lines.append(f"{found['name']} does not fit{why}; change: {found['change']}")
    if plan["slots"] is not None:
        lines.append(f"slots: {plan['slots']} rollouts in flight fit ({plan['slots'] // plan['group']} questions)")
    if plan["slots"] == 0 and not plan["does_not_fit"]:
        lines.append("the rollout does not fit; change: rollout.group or the agent's lengths lower, or more chips")
    if "seconds" in plan:
        parts = ", ".join(f"{name} {value:,.0f}" for name, value in plan["seconds"].items())
        lines += [
            f"a step, every turn at its longest, {tokens['chunks']} chunks, {plan['questions_in_flight']} questions in "
            f"flight, at {plan['efficiency']:.0%} of published figures: {plan['step_seconds']:,.0f} s ({parts})",
            f"{plan['questions_an_hour']:,.0f} questions an hour; {plan['steps']:,} steps: "
            f"{plan['chip_hours']:,.0f} chip-hours",
        ]
    verdict = {True: "fits", False: "does not fit", None: "memory of a device unknown: give --memory-gib"}
    lines.append(verdict[plan["fits"]])
    return "\n".join(lines)


def _function(found: dict[str, Any], devices: int) -> str:
    peak, temp = (_gib(found.get(name)) for name in ("peak_bytes", "temporary_bytes"))
    fits = {True: "yes", False: "no", None: "-"}[found["fits"]]
    flops = found.get("matmul_flops", found.get("compiler_flops"))
    seconds = f"{found['seconds']:.3g}" if "seconds" in found else "-"
    sent = ", ".join(
        f"{kind} {of_kind['bytes'] / 2**30:.3g} GiB" for kind, of_kind in found.get("collectives", {}).items()
    )
    numbers = (
        f"{peak:>9}{temp:>9}{fits:>5}{_tera(flops):>9}{_tera(found.get('model_flops', 0) / devices):>9}{seconds:>9}"
    )
    return f"  {found['name']:15}{numbers}  {found.get('bound', '-')}; {sent or 'none'}"


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.2f}"


def _tera(flops: float | None) -> str:
    return "-" if not flops else f"{flops / 1e12:.3g}"
