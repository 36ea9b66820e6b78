"""Reads machine code as `cuobjdump -sass` prints it: functions, their instructions, and their loops."""

import re
from dataclasses import dataclass, field

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_TARGET = re.compile(r"\b0x([0-9a-f]+)$")


@dataclass
class Function:
    """One kernel: its mangled name and {address: text} in address order."""

    name: str
    code: dict = field(default_factory=dict)

    def addresses_of(self, opcode):
        """Addresses of the instructions whose opcode starts with `opcode`."""
        return [at for at, text in self.code.items() if _opcode(text).startswith(opcode)]


@dataclass(frozen=True)
class Loop:
    """A natural loop: the address of its head and of every instruction in it."""

    head: int
    body: frozenset


def parse(lines):
    """All functions in the lines that `cuobjdump -sass` prints, in order."""
    functions = []
    for line in lines:
        if match := _FUNCTION.match(line):
            functions.append(Function(match[1]))
        elif functions and (match := _INSTRUCTION.match(line)):
            functions[-1].code[int(match[1], 16)] = match[2]
    return functions


def main_loop(function, opcode):
    """The innermost loop with the most instructions that start with `opcode`; None where no loop has one."""
    wanted = set(function.addresses_of(opcode))
    loops = [loop for loop in _loops(function) if wanted & loop.body]
    innermost = [a for a in loops if not any(b.body < a.body for b in loops)]
    return max(innermost, key=lambda loop: (len(wanted & loop.body), len(loop.body)), default=None)


def _opcode(text):
    words = text.split()
    return words[1] if words[0].startswith("@") else words[0]


def _successors(function):
    """{address: addresses that may run next}."""
    order = list(function.code)
    following = dict(zip(order, order[1:]))
    rejoin = {}  # barrier register -> where its BSYNC leads
    for text in function.code.values():
        if _opcode(text).startswith("BSSY"):
            register, target = text.split()[-2:]
            rejoin.setdefault(register.rstrip(","), set()).add(int(target, 16))

    successors = {}
    for at, text in function.code.items():
        opcode, after = _opcode(text), {following[at]} if at in following else set()
        target = {int(m[1], 16)} if (m := _TARGET.search(text)) else set()
        conditional = text.startswith("@")
        if opcode.startswith(("BRX", "JMX")):
            raise ValueError(f"{function.name}: an indirect branch at {at:#x} hides the loops: {text}")
        if opcode.startswith(("BRA", "JMP")):
            # `BRA.U UP0, 0x120` is conditional too.
            successors[at] = target | (after if conditional or "," in text else set())
        elif opcode.startswith(("EXIT", "RET", "KILL")):
            successors[at] = after if conditional else set()
        elif opcode.startswith("BSYNC"):
            places = rejoin.get(text.split()[-1], set())
            successors[at] = after if not places or after & places else places
        elif opcode.startswith(("CALL", "WARPSYNC")):
            successors[at] = target | after
        else:
            successors[at] = after
    return successors


def _loops(function):
    """Natural loops: one for each head that a later instruction, dominated by it, jumps back to."""
    successors = _successors(function)
    dominator, number = _dominators(next(iter(function.code)), successors)
    predecessors = {}
    for at in dominator:
        for to in successors[at]:
            predecessors.setdefault(to, []).append(at)

    tails = {}
    for at in dominator:
        for to in successors[at]:
            if _dominates(to, at, dominator, number):
                tails.setdefault(to, []).append(at)
    return [Loop(head, _body(head, ends, predecessors)) for head, ends in tails.items()]


def _body(head, tails, predecessors):
    body, pending = {head}, list(tails)
    while pending:
        at = pending.pop()
        if at not in body:
            body.add(at)
            pending.extend(predecessors[at])
    return frozenset(body)


def _dominates(a, b, dominator, number):
    while number[b] > number[a]:
        b = dominator[b]
    return a == b


def _dominators(entry, successors):
    """Immediate dominators of what is reachable (Cooper, Harvey and Kennedy), and its reverse postorder."""
    order, seen, stack = [], {entry}, [(entry, iter(sorted(successors[entry])))]
    while stack:
        at, rest = stack[-1]
        to = next((x for x in rest if x not in seen), None)
        if to is None:
            order.append(at)
            stack.pop()
        else:
            seen.add(to)
            stack.append((to, iter(sorted(successors[to]))))
    order.reverse()
    number = {at: i for i, at in enumerate(order)}

    predecessors = {at: [] for at in order}
    for at in order:
        for to in successors[at]:
            predecessors[to].append(at)

    dominator = {entry: entry}
    changed = True
    while changed:
        changed = False
        for at in order[1:]:
            known = [p for p in predecessors[at] if p in dominator]
            best = known[0]
            for other in known[1:]:
                while best != other:
                    if number[best] > number[other]:
                        best = dominator[best]
                    else:
                        other = dominator[other]
            if dominator.get(at) != best:
                dominator[at] = best
                changed = True
    return dominator, number
