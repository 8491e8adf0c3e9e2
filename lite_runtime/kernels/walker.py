"""The native side of a run: walk a program's steps, meet the other workers between them, wait for the next run.

A program is int64 words: step records one after the other. `table` holds the kernels' addresses; a record's first word
is an index into it. `sync` is shared by all workers, one counter a cache line:
[0] arrived at the barrier, [8] barrier generation, [16] run ticket, [24] the job: program, words, bases, table.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.simd import declare, device, i64p, kernel

_WORDS = types.CPointer(types.int64)
ARRIVED, GENERATION, TICKET, JOB = 0, 8, 16, 24
PARALLEL = 1
"""Flag of a step whose work is shared; without it worker 0 runs it alone."""
MEET = 2
"""Flag of a step before which all workers must have finished what came earlier."""
SPIN = 2048
"""Polls of a barrier before the processor is given away: about 50 µs, longer than any balanced step's tail."""


@intrinsic
def call_kernel(typing, function, step, bases, worker, workers):
    """Call the kernel at an address."""
    sig = types.void(types.int64, _WORDS, _WORDS, types.int64, types.int64)

    def lower(context, builder, sig, args):
        words, int64 = ir.IntType(64).as_pointer(), ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [words, words, int64, int64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return sig, lower


@intrinsic
def call_void(typing, function):
    """Call a function without arguments at an address."""
    sig = types.void(types.int64)

    def lower(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return sig, lower


@intrinsic
def pause(typing):
    """Tell the processor that this is a spin loop."""
    sig = types.void()

    def lower(context, builder, sig, args):
        builder.call(declare(builder, "llvm.x86.sse2.pause", ir.VoidType()), [])
        return context.get_dummy_value()

    return sig, lower


@intrinsic
def fetch_add(typing, words, i, value):
    """Add to words[i] for all workers to see; the value before."""
    sig = types.int64(_WORDS, types.int64, types.int64)

    def lower(context, builder, sig, args):
        return builder.atomic_rmw("add", builder.gep(args[0], [args[1]]), args[2], "seq_cst")

    return sig, lower


@intrinsic
def peek(typing, words, i):
    """words[i] as the other workers last left it."""
    sig = types.int64(_WORDS, types.int64)

    def lower(context, builder, sig, args):
        return builder.load_atomic(builder.gep(args[0], [args[1]]), "acquire", 8)

    return sig, lower


@device
def meet(sync, workers, give_way):
    """Return once all workers are here. `give_way`: address of a function that yields the processor."""
    generation = peek(sync, GENERATION)
    if fetch_add(sync, ARRIVED, 1) == workers - 1:
        fetch_add(sync, ARRIVED, -workers)
        fetch_add(sync, GENERATION, 1)
        return
    spins = 0
    while peek(sync, GENERATION) == generation:
        pause()
        spins += 1
        if spins > SPIN:
            call_void(give_way)


@intrinsic
def i64p_of(typing, words, i):
    """Pointer to words[i]."""
    sig = _WORDS(_WORDS, types.int64)
    return sig, lambda context, builder, sig, args: builder.gep(args[0], [args[1]])


@device
def walk(program, words, bases, table, sync, worker, workers, give_way):
    """Walk a program as one of `workers`. Returns when every worker has finished it."""
    at = 0
    while at < words:
        step = i64p_of(program, at)
        flags = step[2] & 3
        if workers > 1 and flags & MEET:
            meet(sync, workers, give_way)
        if flags & PARALLEL:
            call_kernel(table[step[0]], step, bases, worker, workers)
        elif worker == 0:
            call_kernel(table[step[0]], step, bases, 0, 1)
        at += step[1]
    if workers > 1:
        meet(sync, workers, give_way)


@kernel(args=types.void(_WORDS, types.int64, _WORDS, _WORDS, _WORDS, types.int64, types.int64))
def run(program, words, bases, table, sync, workers, give_way):
    """Walk a program as worker 0; the others have been rung for."""
    walk(program, words, bases, table, sync, 0, workers, give_way)


@kernel(args=types.void(_WORDS))
def ring(sync):
    """There is a job in `sync`, from JOB on: change the ticket that workers watch."""
    fetch_add(sync, TICKET, 1)


@kernel(args=types.void(_WORDS, _WORDS, types.int64, types.int64, types.int64, types.int64))
def serve(sync, seen, spins, worker, workers, give_way):
    """Take part in every run that is rung for; return once `spins` polls have found none.

    seen[0] is the last ticket served. All in native code: a run costs its workers no turn of Python's lock.
    """
    polls = 0
    while polls < spins:
        ticket = peek(sync, TICKET)
        if ticket == seen[0]:
            pause()
            polls += 1
        else:
            polls = 0
            seen[0] = ticket
            program, words, bases, table = i64p(sync[JOB]), sync[JOB + 1], i64p(sync[JOB + 2]), i64p(sync[JOB + 3])
            walk(program, words, bases, table, sync, worker, workers, give_way)
