"""Counting in XLA's text: by hand, against a slow oracle, and on two recorded programs."""

import itertools
import pathlib

import pytest

from searchjax.dist import hlo

RECORDED = pathlib.Path(__file__).parent / "hlo"
MESH = {"fsdp": 2, "expert": 2, "context": 1}


def costs(body: str, mesh=None, **options) -> hlo.Costs:
  return hlo.program_costs("HloModule m\n\n" + body, mesh or MESH, **options)


def entry(*lines: str, before: str = "") -> str:
  inside = "\n".join("  " + line for line in lines)
  return f"{before}\nENTRY %main (p: f32[]) -> f32[] {{\n{inside}\n}}\n"


def recorded(name: str) -> tuple[str, str]:
  return (RECORDED / f"{name}.txt").read_text(), (RECORDED / f"{name}_buffers.txt").read_text()


# ---- matmuls -------------------------------------------------------------------------------------


def test_a_dot_is_two_m_n_k():
  found = costs(entry(
    "%a = bf16[3,7,11]{2,1,0} parameter(0)",
    "%b = bf16[3,11,13]{2,1,0} parameter(1)",
    "ROOT %d = f32[3,7,13]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
    "rhs_batch_dims={0}, rhs_contracting_dims={1}",
  ))
  assert found.total_flops == 2 * 3 * 7 * 11 * 13


def test_a_batched_matmul_written_as_a_convolution_counts_its_products_only():
  """XLA:TPU's form of [13, 256, 384] × [13, 384, 128]; the naive count is 13 times too high."""
  found = costs(entry(
    "%a = bf16[13,256,384]{2,1,0} parameter(0)",
    "%b = bf16[13,384,128]{2,1,0} parameter(1)",
    "ROOT %c = bf16[13,256,128]{2,1,0} convolution(%a, %b), "
    "window={size=13 stride=12 lhs_dilate=13}, dim_labels=0bf_0io->0bf",
  ))
  right = 2 * 13 * 256 * 384 * 128
  assert found.total_flops == right
  assert found.total_flops != 13 * right


def test_two_batch_axes_in_one_convolution():
  found = costs(entry(
    "%a = bf16[3,5,256,128]{3,2,1,0} parameter(0)",
    "%b = bf16[3,5,256,128]{3,2,1,0} parameter(1)",
    "ROOT %c = bf16[3,5,256,256]{3,2,1,0} convolution(%a, %b), "
    "window={size=3x5 stride=2x4 lhs_dilate=3x5}, dim_labels=01bf_01oi->01bf",
  ))
  assert found.total_flops == 2 * 3 * 5 * 256 * 256 * 128


@pytest.mark.parametrize(
  ("data", "kernel", "stride", "pad", "dilate", "kernel_dilate"),
  [(7, 3, 1, (0, 0), 1, 1), (7, 3, 2, (1, 1), 1, 1), (5, 3, 1, (2, 2), 2, 1),
   (11, 3, 1, (1, 0), 1, 2), (5, 5, 4, (0, 0), 5, 1), (3, 5, 1, (4, 4), 1, 1)],
)  # fmt: skip
def test_window_positions_are_those_a_loop_finds(data, kernel, stride, pad, dilate, kernel_dilate):
  dilated = (data - 1) * dilate + 1
  span = (kernel - 1) * kernel_dilate + 1
  result = (dilated + sum(pad) - span) // stride + 1
  met = 0
  for position, k in itertools.product(range(result), range(kernel)):
    at = position * stride + k * kernel_dilate - pad[0]
    met += 0 <= at < dilated and at % dilate == 0
  found = costs(entry(
    f"%a = f32[{data},2,17] parameter(0)",
    f"%b = f32[{kernel},17,19] parameter(1)",
    f"ROOT %c = f32[{result},2,19] convolution(%a, %b), window={{size={kernel} stride={stride} "
    f"pad={pad[0]}_{pad[1]} lhs_dilate={dilate} rhs_dilate={kernel_dilate}}}, "
    f"dim_labels=0bf_0io->0bf",
  ))
  assert found.total_flops == 2 * 2 * 17 * 19 * met


# ---- loops ---------------------------------------------------------------------------------------

BODY = """
%body (s: (s32[], f32[7,11], f32[11,11])) -> (s32[], f32[7,11], f32[11,11]) {
  %s = (s32[], f32[7,11], f32[11,11]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(STEP)
  %next = s32[] add(%i, %one)
  %x = f32[7,11] get-tuple-element(%s), index=1
  %w = f32[11,11] get-tuple-element(%s), index=2
  %y = f32[7,11] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[7,11], f32[11,11]) tuple(%next, %y, %w)
}

%condition (s: (s32[], f32[7,11], f32[11,11])) -> pred[] {
  %s = (s32[], f32[7,11], f32[11,11]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %limit = s32[] constant(LIMIT)
  %first = pred[] compare(%i, %limit), direction=DIRECTION
  %again = pred[] custom-call(%i), custom_call_target="AnyData"
  ROOT %c = pred[] ROOT_OP
}
"""


def loop(start="0", step="1", limit="6", direction="LT", root="bitcast(%first)", note=""):
  before = BODY.replace("STEP", step).replace("LIMIT", limit).replace("DIRECTION", direction)
  before = before.replace(
    "  ROOT %c = pred[] ROOT_OP\n",
    "  ROOT %c = pred[] and(%again, %first)\n" if root == "and" else "",
  )
  if root != "and":
    before = before.replace("  %first", "  ROOT %first")
  return entry(
    f"%start = s32[] {start if '(' in start else f'constant({start})'}",
    "%copied = s32[] copy(%start)",
    "%x = f32[7,11] parameter(0)",
    "%w = f32[11,11] parameter(1)",
    "%t = (s32[], f32[7,11], f32[11,11]) tuple(%copied, %x, %w)",
    "ROOT %l = (s32[], f32[7,11], f32[11,11]) while(%t), condition=%condition, body=%body" + note,
    before=before,
  )


@pytest.mark.parametrize(
  ("options", "trips"),
  [
    ({}, 6),
    ({"start": "2"}, 4),
    ({"direction": "LE"}, 7),
    ({"step": "4"}, 2),  # 0, 4: rounded up.
    ({"start": "9", "step": "-2", "limit": "1", "direction": "GT"}, 4),
    ({"root": "and"}, 6),  # Data may end it earlier: at most so often.
    ({"note": ', backend_config={"known_trip_count":{"n":"5"}}'}, 5),
  ],
)
def test_a_loop_counts_as_often_as_it_runs(options, trips):
  found = costs(loop(**options))
  assert found.total_flops == trips * 2 * 7 * 11 * 11
  assert not found.open_loops


def test_a_loop_whose_end_only_data_know_counts_once_and_is_named():
  found = costs(loop(start="parameter(2)"))
  assert found.total_flops == 2 * 7 * 11 * 11
  assert dict(found.open_loops) == {"l": 1}


def test_the_dearest_branch_counts():
  branch = lambda name, k: (
    f"\n%{name} (p: f32[7,{k}]) -> f32[7,7] {{\n  %p = f32[7,{k}] parameter(0)\n"
    f"  ROOT %d = f32[7,7] dot(%p, %p), lhs_contracting_dims={{1}}\n}}\n"
  )
  found = costs(entry(
    "%i = s32[] parameter(0)", "%a = f32[7,3] parameter(1)", "%b = f32[7,5] parameter(2)",
    "ROOT %c = f32[7,7] conditional(%i, %a, %b), branch_computations={%small, %big}",
    before=branch("small", 3) + branch("big", 5),
  ))
  assert found.total_flops == 2 * 7 * 7 * 5


# ---- collectives ---------------------------------------------------------------------------------

ADD = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %b = f32[] parameter(1)
}
"""
FSDP, EXPERT = "{{0,2},{1,3}}", "{{0,1},{2,3}}"


@pytest.mark.parametrize(
  ("line", "kind", "axes", "sent"),
  [
    (f"all-gather(%x), replica_groups={FSDP}, dimensions={{0}}", "all-gather", "fsdp", 4000),
    (f"reduce-scatter(%x), replica_groups={EXPERT}, to_apply=%sum",
     "reduce-scatter", "expert", 2000),
    (f"all-reduce(%x), replica_groups={EXPERT}, to_apply=%sum", "all-reduce", "expert", 4000),
    ("all-reduce(%x), replica_groups={}, to_apply=%sum", "all-reduce", "fsdp+expert", 6000),
    (f"all-to-all(%x), replica_groups={FSDP}, dimensions={{0}}", "all-to-all", "fsdp", 2000),
    ("collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}",
     "collective-permute", "expert", 4000),
    ("all-gather(%x), replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}",
     "all-gather", "fsdp", 4000),
    ("all-gather(%x), replica_groups=[2,2]<=[4], dimensions={0}", "all-gather", "expert", 4000),
    ("all-gather(%x), replica_groups=[1,4]<=[4], dimensions={0}",
     "all-gather", "fsdp+expert", 12000),
    ("all-gather(%x), replica_groups={{0},{1},{2},{3}}, dimensions={0}", "all-gather", "none", 0),
  ],
)  # fmt: skip
def test_bytes_that_a_device_sends(line, kind, axes, sent):
  found = costs(entry("%x = f32[1000] parameter(0)", f"ROOT %y = f32[2000] {line}", before=ADD))
  assert dict(found.sent) == {(kind, axes): sent}
  assert dict(found.counts) == {(kind, axes): 1}
  assert found.sent_by_axis() == {axes: sent}


def test_an_all_reduce_of_which_a_slice_is_kept_is_a_reduce_scatter():
  before = ADD + f"""
%all-reduce-scatter.1 (i: f32[1000]) -> f32[500] {{
  %i = f32[1000] parameter(0)
  %r = f32[1000] all-reduce(%i), replica_groups={EXPERT}, to_apply=%sum
  %zero = s32[] constant(0)
  ROOT %s = f32[500] dynamic-slice(%r, %zero), dynamic_slice_sizes={{500}}
}}
"""
  found = costs(entry(
    "%x = f32[1000] parameter(0)",
    "ROOT %y = f32[500] fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1", before=before,
  ))
  assert dict(found.sent) == {("reduce-scatter", "expert"): 2000}


GATHER = ("all-gather(%p0), channel_id=6, replica_groups={{0,2},{1,3}}, dimensions={0}, "
          'use_global_device_ids=true, frontend_attributes={chain_id="0"}')
TARGET = 'custom_call_target="AsyncCollective'
SPLIT = f"""
%begin (p0: bf16[64,128]) -> (bf16[64,128], bf16[128,128], u32[]) {{
  %p0 = bf16[64,128]{{1,0}} parameter(0)
  %g = bf16[128,128]{{1,0}} {GATHER}
  ROOT %s = (bf16[64,128]{{1,0}}, bf16[128,128]{{1,0}}, u32[]) custom-call(%g), {TARGET}Start"
}}

%meanwhile (p0: bf16[64,128], p1: bf16[128,128], p2: u32[], p3: bf16[32,128]) -> (bf16[32,128]) {{
  %p3 = bf16[32,128]{{1,0}} parameter(3)
  %n = bf16[32,128]{{1,0}} negate(%p3)
  %p0 = bf16[64,128]{{1,0}} parameter(0)
  %p1 = bf16[128,128]{{1,0}} parameter(1)
  %g = bf16[128,128]{{1,0}} {GATHER}
  %p2 = u32[] parameter(2)
  ROOT %t = (bf16[32,128]{{1,0}}, bf16[64,128]{{1,0}}, bf16[128,128]{{1,0}}, u32[]) tuple(%n, %p0, %g, %p2)
}}

%finish (p0: bf16[64,128], p1: bf16[128,128], p2: u32[]) -> bf16[128,128] {{
  %p0 = bf16[64,128]{{1,0}} parameter(0)
  %p1 = bf16[128,128]{{1,0}} parameter(1)
  %g = bf16[128,128]{{1,0}} {GATHER}
  %p2 = u32[] parameter(2)
  ROOT %d = bf16[128,128]{{1,0}} custom-call(%p0, %p1, %g, %p2), {TARGET}Done"
}}
"""


def test_a_collective_split_over_fusions_counts_once():
  """XLA's form on v5e: every part has the collective in it, here three times 64 · 128 · 2 bytes."""
  found = costs(entry(
    "%x = bf16[64,128]{1,0} parameter(0)",
    "%y = bf16[32,128]{1,0} parameter(1)",
    "%a = (bf16[64,128]{1,0}, bf16[128,128]{1,0}, u32[]) fusion(%x), kind=kCustom, calls=%begin",
    "%a0 = bf16[64,128]{1,0} get-tuple-element(%a), index=0",
    "%a1 = bf16[128,128]{1,0} get-tuple-element(%a), index=1",
    "%a2 = u32[] get-tuple-element(%a), index=2",
    "%b = (bf16[32,128]{1,0}, bf16[64,128]{1,0}, bf16[128,128]{1,0}, u32[]) "
    "fusion(%a0, %a1, %a2, %y), kind=kOutput, calls=%meanwhile",
    "%b1 = bf16[64,128]{1,0} get-tuple-element(%b), index=1",
    "%b2 = bf16[128,128]{1,0} get-tuple-element(%b), index=2",
    "%b3 = u32[] get-tuple-element(%b), index=3",
    "ROOT %c = bf16[128,128]{1,0} fusion(%b1, %b2, %b3), kind=kCustom, calls=%finish",
    before=SPLIT,
  ))
  assert found.sent == {("all-gather", "fsdp"): 64 * 128 * 2}
  assert found.counts == {("all-gather", "fsdp"): 1}
  # The start reads its operand and writes it and the result; the rest only what it computes.
  assert found.hbm == 2 * 128 * (64 + 64 + 128 + 32 + 32) + 4


def test_a_collective_that_another_core_does_counts_once():
  """tpu7x: async-start calls a custom call that calls the collective."""
  before = f"""
%inner (p: f32[1000]) -> f32[2000] {{
  %p = f32[1000] parameter(0)
  ROOT %g = f32[2000] all-gather(%p), replica_groups={FSDP}, dimensions={{0}}
}}

%wrapped (p: f32[1000]) -> f32[2000] {{
  %p = f32[1000] parameter(0)
  ROOT %c = f32[2000] custom-call(%p), custom_call_target="Offload", called_computations={{%inner}}
}}
"""
  found = costs(entry(
    "%x = f32[1000] parameter(0)",
    "%s = ((), ()) async-start(), calls=%wrapped",
    "%u = ((f32[1000]), f32[2000]) async-update(%s, %x)",
    "ROOT %y = f32[2000] async-done(%u)", before=before,
  ))
  assert dict(found.sent) == {("all-gather", "fsdp"): 4000}
  assert found.hbm == 4000 + 8000


# ---- HBM bytes -----------------------------------------------------------------------------------


def test_minor_dimensions_are_padded_to_tiles():
  plain = hlo.parse_array("bf16", "3,7", "1,0:T(8,128)(2,1)")
  assert (plain.logical_bytes, plain.padded_bytes) == (42, 8 * 128 * 2)
  turned = hlo.parse_array("bf16", "3,7", "0,1:T(8,128)(2,1)S(1)")
  assert (turned.padded_bytes, turned.hbm_bytes) == (8 * 128 * 2, 0)
  assert hlo.parse_array("f32", "", ":T(128)").padded_bytes == 512
  assert hlo.parse_array("s4", "16", "").padded_bytes == 8


@pytest.mark.parametrize("name", ["step", "kernels"])
def test_sizes_are_those_of_xlas_buffer_assignment(name):
  _, buffers = recorded(name)
  seen = 0
  for line in buffers.splitlines():
    value = hlo.VALUE.match(line)
    if value and not value[4].startswith("("):
      array = hlo.parse_array(*(part or "" for part in hlo.ARRAY.match(value[4]).groups()))
      assert array.padded_bytes == int(value[2]), line
      seen += 1
  assert seen > 10


STACK = """
%put (stack: f32[97,1000], x: f32[1,1000], i: s32[]) -> f32[97,1000] {
  %stack = f32[97,1000] parameter(0)
  %x = f32[1,1000] parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %u = f32[97,1000] dynamic-update-slice(%stack, %x, %i, %zero)
}

%take (stack: f32[97,1000], i: s32[]) -> f32[1,1000] {
  %stack = f32[97,1000] parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %view = f32[97,1000] bitcast(%stack)
  %s = f32[1,1000] dynamic-slice(%view, %i, %zero), dynamic_slice_sizes={1,1000}
  ROOT %n = f32[1,1000] negate(%s)
}
"""


def test_a_slice_of_a_stack_counts_as_the_slice():
  """The naive count of a scan's stacked residuals is 97 times too high."""
  written = costs(entry(
    "%stack = f32[97,1000] parameter(0)", "%x = f32[1,1000] parameter(1)",
    "%i = s32[]{:S(2)} parameter(2)",
    "ROOT %y = f32[97,1000] fusion(%stack, %x, %i), kind=kLoop, calls=%put", before=STACK,
  ))
  assert written.hbm == 4000 + 4000  # The row is read and written; the other rows are not.
  read = costs(entry(
    "%stack = f32[97,1000] parameter(0)", "%i = s32[]{:S(2)} parameter(1)",
    "ROOT %y = f32[1,1000] fusion(%stack, %i), kind=kLoop, calls=%take", before=STACK,
  ))
  assert read.hbm == 4000 + 4000


def test_on_chip_memory_costs_nothing_and_a_copy_costs_its_hbm_side():
  found = costs(entry(
    "%x = f32[1000] parameter(0)",
    "%s = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%x)",
    "%d = f32[1000]{0:S(1)} copy-done(%s)",
    "%n = f32[1000]{0:S(1)} negate(%d)",
    "%b = f32[1000]{0} copy(%n)",
    "ROOT %t = (f32[1000]) tuple(%b)",
  ))
  assert found.hbm == 4000 + 4000


def test_what_moves_nothing_counts_nothing():
  found = costs(entry(
    "%x = (f32[1000], f32[1000]) parameter(0)",
    "%a = f32[1000] get-tuple-element(%x), index=0",
    "%b = f32[10,100] bitcast(%a)",
    '%c = f32[1000] custom-call(), custom_call_target="AllocateBuffer"',
    "ROOT %t = (f32[10,100], f32[1000]) tuple(%b, %c)",
  ))
  assert found.hbm == 0


# ---- kernels -------------------------------------------------------------------------------------


def test_an_instruction_may_span_lines():
  """Splash attention's metadata is JSON with line ends."""
  text = kernel(',"cost_estimate":{"bytes_accessed":"7","flops":"5"}').replace(
    "metadata={op", 'frontend_attributes={kernel_metadata={\n"block":"{\\"q\\": 128}"\n}}, metadata={op'
  )
  assert text.count("\n") == kernel("").count("\n") + 2
  assert dict(costs(text).flops) == {"attend": 5}


def kernel(estimate: str, scope: str = "jit(f)/attend/pallas_call") -> str:
  return entry(
    "%x = f32[1000] parameter(0)",
    'ROOT %k.1 = f32[1000] custom-call(%x), custom_call_target="tpu_custom_call", '
    f'metadata={{op_name="{scope}"}}, '
    f'backend_config={{"custom_call_config":{{"body":"…"{estimate}}}}}',
  )


def test_a_kernel_costs_what_its_estimate_says():
  found = costs(kernel(',"cost_estimate":{"bytes_accessed":"777","flops":"12345"}'))
  assert (dict(found.flops), found.hbm) == ({"attend": 12345}, 777)
  assert (dict(found.kernels), dict(found.uncosted)) == ({"attend": 1}, {})


def test_a_given_cost_goes_before_the_estimate():
  text = kernel(',"cost_estimate":{"bytes_accessed":"777","flops":"12345"}', "jit(f)/jit(attend)")
  found = costs(text, kernel_costs={"attend": (5.0, 3.0)})
  assert (dict(found.flops), found.hbm) == ({"attend": 5}, 3)


@pytest.mark.parametrize("estimate", ["", ',"cost_estimate":{"bytes_accessed":"0","flops":"0"}'])
def test_a_kernel_without_a_cost_is_named(estimate):
  found = costs(kernel(estimate))
  assert dict(found.uncosted) == {"attend": 1}
  assert (found.total_flops, found.hbm) == (0, 8000)


# ---- recorded programs (tests/small_pod.py on v5p:2x2x1) -----------------------------------------


def test_the_recorded_training_step():
  text, buffers = recorded("step")
  found = hlo.program_costs(text, MESH)
  # 3 layers, 256 rows a device, width 256: one matmul forward, two backward.
  assert found.total_flops == 3 * 3 * 2 * 256 * 256 * 256
  weight, rows = 256 * 256 * 2, 256 * 256 * 2
  assert found.sent["all-gather", "fsdp"] == found.sent["reduce-scatter", "fsdp"] == 3 * weight / 2
  # Gathered forward and backward; XLA sums over both and keeps half: an all-reduce costs twice a
  # reduce-scatter.
  assert found.sent["all-gather", "expert"] == 2 * 3 * rows / 2
  assert found.sent["all-reduce", "expert"] == 2 * 3 * 2 * rows / 2
  assert found.counts["all-reduce", "fsdp+expert"] == 1  # The loss.
  assert not found.open_loops and not found.kernels
  memory = hlo.program_memory(buffers, text)
  assert memory.arguments == 3 * 128 * 256 * 2 + rows
  assert memory.donated == 3 * 128 * 256 * 2
  assert memory.total == memory.arguments + memory.outputs + memory.temporaries
  assert memory.host == 0


def test_the_recorded_kernels():
  text, buffers = recorded("kernels")
  found = hlo.program_costs(text, MESH, {"given": (1e6, 2e6)})
  assert dict(found.flops) == {
    "convolution": 2 * 5 * 256 * 128 * 256, "estimated": 11 * 1000, "given": 11 * 1e6
  }
  assert dict(found.kernels) == {"estimated": 11, "given": 11, "silent": 11}
  assert dict(found.uncosted) == {"silent": 11}
  memory = hlo.program_memory(buffers, text, largest=1)
  assert memory.arguments == 2 * (5 * 256 * 128 * 2) + 256 * 128 * 2
  assert memory.largest[0] == hlo.Buffer(
    5 * 256 * 256 * 2, "bf16[5,256,256]", "output",
    "jit(both)/shard_map/btk,bks->bts/dot_general",
  )


def test_what_called_computations_hold_is_not_counted_twice():
  """As XLA's memory_analysis: of a program with gathers on v5p, 1,108,262,944 of 2,946,312,000."""
  text = entry("%x = f32[3] parameter(0)", "ROOT %y = f32[3] negate(%x)")
  buffers = "\n".join([
    "BufferAssignment:",
    "allocation 0: size 12, page 0, parameter 0, shape |f32[3]| at ShapeIndex {}:",
    " value: <0 x @0> (size=12,offset=0): f32[3]{0}",
    "allocation 1: size 700, page 0, thread-local:",
    " value: <1 gather_offload_custom_fusion.3 @0> (size=700,offset=0): f32[175]{0}",
    "allocation 2: size 512, page 0, preallocated-temp:",
    " value: <2 y @0> (size=12,offset=0): f32[3]{0}",
  ])
  memory = hlo.program_memory(buffers, text)
  assert (memory.arguments, memory.temporaries, memory.outputs) == (12, 512, 0)
  assert [b.kind for b in memory.largest] == ["argument", "temporary"]


def test_texts_that_are_no_dumps_are_refused():
  with pytest.raises(ValueError, match="without an ENTRY computation"):
    hlo.parse("HloModule m\n")
  with pytest.raises(ValueError, match="text without allocations"):
    hlo.program_memory("BufferAssignment:\n", "")
  with pytest.raises(ValueError, match="unknown element type q7"):
    costs(entry("%x = q7[3] parameter(0)", "ROOT %y = q7[3] negate(%x)"))
