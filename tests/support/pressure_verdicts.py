"""Verdicts on a single target."""

from __future__ import annotations

from collections.abc import Callable

from memwatch.core.pressure.inputs import PressureInputs, Target
from memwatch.core.pressure.judge import JudgeState, judge
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import MemoryPsi, Pressure, PsiLine

MIB, GIB = 1 << 20, 1 << 30
RULES = PressureRules()


def ram(available: int, size: int = 64 * GIB) -> Target:
    return Target("ram", "system_ram", size, available, is_host=True)


def run(
    evidence: Callable[[float], PressureInputs], seconds: int, rules: PressureRules = RULES, step: float = 1.0
) -> list[Pressure]:
    """Return the verdicts on the first target, one a second."""
    memory, verdicts = JudgeState(), []
    for tick in range(int(seconds / step)):
        found, memory = judge(evidence(tick * step), memory, rules)
        verdicts.append(found[0])
    return verdicts


def psi(some: float, full: float) -> MemoryPsi:
    """Return stalls with these totals in seconds; the kernel's averages are 0."""
    return MemoryPsi(PsiLine(0.0, 0.0, 0.0, some), PsiLine(0.0, 0.0, 0.0, full))


def signals(verdict: Pressure) -> set[str]:
    return {reason.signal for reason in verdict.reasons}
