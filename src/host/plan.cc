// make_plan: normalize, choose, describe.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "host/config_name.h"
#include "host/measured.h"
#include "host/normal_form.h"
#include "host/select.h"
#include "host/slower.h"
#include "host/status.h"
#include "host/swap.h"
#include "host/tail.h"

namespace hopgemm {
namespace {

Status too_many_blocks(double blocks) {
  return failure(Code::kInvalidArgument, "hopgemm: %.3g output tiles; at most 1e9. Split the product",
                 blocks);
}

// A config that cuts K gives other bits than one that does not. So a limit on SMs decides nothing about that,
// unless its clusters do not fit.
Choice select_within(const NormalProblem& p, const Problem& problem, const DeviceFacts& facts) {
  const int limit = sms_to_use(problem, facts);
  Choice whole = measured(h200_table(), p, problem.a.dtype, facts, !problem.batch_invariant);
  // A kernel without a schedule stands for the usual one there, too, as it does by name.
  if (whole.instance && whole.schedule == Schedule{})
    whole.schedule = default_schedule(whole.instance->config, p, facts.sm_count, facts.l2_bytes);
  if (!whole.instance) whole = select(p, problem.a.dtype, facts, facts.sm_count, !problem.batch_invariant);
  if (limit == facts.sm_count || !whole.instance) return whole;
  const Schedule& s = whole.schedule;
  if (parts_k(s) && cluster_size(whole.instance->config, s.split) <= limit) return whole;
  return select(p, problem.a.dtype, facts, limit, false);
}

// All that an automatic choice looks at.
struct Question {
  int64_t m, n, k, batch_inner, batch_outer, l2_bytes;
  int sm_limit, sm_count, max_smem_bytes, dram_bytes_per_cycle;
  DType dtype, result;
  Major a, b;
  bool batch_invariant, is_h200_sxm;
  bool operator==(const Question&) const = default;
};
Question question_of(const NormalProblem& p, const Problem& problem, const DeviceFacts& facts) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .batch_inner = p.batch_inner,
          .batch_outer = p.batch_outer,
          .l2_bytes = facts.l2_bytes,
          .sm_limit = problem.sm_limit,
          .sm_count = facts.sm_count,
          .max_smem_bytes = facts.max_smem_bytes,
          .dram_bytes_per_cycle = facts.dram_bytes_per_cycle,
          .dtype = problem.a.dtype,
          .result = p.epilogue.d.dtype,
          .a = p.a.major,
          .b = p.b.major,
          .batch_invariant = problem.batch_invariant,
          .is_h200_sxm = is_h200_sxm(facts)};
}

// What this thread chose lately: a choice takes 1 to 2 us, half of the launch that follows. A question's
// place is a hash; two that share it take turns.
struct Remembered {
  Question question{};
  Choice choice{};
};
Remembered& remembered(const Question& q) {
  // No destructor: who plans while a thread ends finds it still there.
  static thread_local constinit Remembered places[64]{};
  static_assert(std::is_trivially_destructible_v<Remembered>);
  uint64_t hash = 0;
  for (const int64_t x : {q.m, q.n, q.k, q.batch_inner, int64_t{q.a == q.b}, int64_t{q.batch_invariant}})
    hash = (hash ^ static_cast<uint64_t>(x)) * 0x9E3779B97F4A7C15;
  return places[hash >> 58];
}

Choice choose_automatically(const NormalProblem& p, const Problem& problem, const DeviceFacts& facts) {
  const Question question = question_of(p, problem, facts);
  Remembered& last = remembered(question);
  if (!last.choice.instance || last.question != question) last = {question, select_within(p, problem, facts)};
  return last.choice;
}

Status choose(const NormalProblem& p, const Problem& problem, const char* config, const DeviceFacts& facts,
              Choice& choice) {
  if (is_automatic(config)) {
    choice = choose_automatically(p, problem, facts);
    if (choice.instance) return {};
    if (choice.fewest_blocks > kMaxBlocks && std::isfinite(choice.fewest_blocks))
      return too_many_blocks(choice.fewest_blocks);
    return failure(Code::kUnsupportedDevice,
                   "hopgemm: no kernel fits %s with %d SMs and %d bytes of shared memory a CTA", facts.name,
                   facts.sm_count, facts.max_smem_bytes);
  }
  if (!parse_config(config, choice.instance, choice.schedule))
    return failure(Code::kInvalidArgument,
                   "hopgemm: config is '%.100s'; it must be the name of a kernel, or \"auto\". Take one from"
                   " hopgemm.plan(a, b).config",
                   config);
  const KernelConfig& c = choice.instance->config;
  if (!fits(c, p, problem.a.dtype))
    return failure(Code::kInvalidArgument,
                   "hopgemm: config is '%s'; it does not fit %s operands of majors %c%c. Take another, or"
                   " \"auto\"",
                   config, name_of(problem.a.dtype), p.a.major == Major::kK ? 'k' : 'm',
                   p.b.major == Major::kK ? 'k' : 'n');
  if (smem_bytes(c) > facts.max_smem_bytes)
    return failure(
        Code::kUnsupportedDevice,
        "hopgemm: config is '%s' and needs %d bytes of shared memory; %s gives a CTA %d. Take another, or"
        " \"auto\"",
        config, smem_bytes(c), facts.name, facts.max_smem_bytes);
  const int k_tiles = ceil_div(p.k, kTileK);
  if (!is_valid_split(c, choice.schedule.split, k_tiles))
    return failure(
        Code::kInvalidArgument,
        "hopgemm: config is '%s' and splits K %d ways; swapped kernels take 2 or 4, and no more than there"
        " are steps of 64 (%d steps here). Take a smaller split, or \"auto\"",
        config, choice.schedule.split, k_tiles);
  const double blocks = count_blocks(c, p);
  if (!is_valid_tail(c, choice.schedule, blocks, k_tiles))
    return failure(
        Code::kInvalidArgument,
        "hopgemm: config is '%s' and cuts the last %d tiles of %.9g into %d ranges; a tail is of a kernel"
        " that is not swapped, of at most %d tiles, ranges and the steps of 64 that it has (%d a tile)."
        " Take less, or \"auto\"",
        config, choice.schedule.tail, blocks, choice.schedule.ranges, kMaxTail, k_tiles);
  if (problem.batch_invariant && parts_k(choice.schedule))
    return failure(Code::kInvalidArgument,
                   "hopgemm: config is '%s' and splits K, whose sums then depend on it; batch_invariant rules"
                   " that out. Take one without +split and +tail",
                   config);
  if (problem.batch_invariant && choice.schedule.k_period)
    return failure(Code::kInvalidArgument,
                   "hopgemm: config is '%s' and turns the direction of K by position (+k%d);"
                   " batch_invariant rules that out. Take one without it",
                   config, choice.schedule.k_period);
  if (blocks > kMaxBlocks) return too_many_blocks(blocks);
  if (!std::strchr(config, '+'))
    choice.schedule = default_schedule(c, p, sms_to_use(problem, facts), facts.l2_bytes);
  std::snprintf(choice.reason, sizeof choice.reason, "asked for by name");
  return {};
}

void describe_traffic(const Problem& p, Plan& plan) {
  double batch = 1;
  for (int i = 0; i < p.batch_dims; ++i) batch *= static_cast<double>(p.batch[i]);
  auto copies = [&](const Matrix& x) {  // a broadcast operand is read once
    double n = 1;
    for (int i = 0; i < p.batch_dims; ++i) n *= x.batch_stride[i] ? static_cast<double>(p.batch[i]) : 1.0;
    return n;
  };
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  plan.flops = 2 * m * n * k * batch;
  plan.bytes = 2 * (m * k * copies(p.a) + k * n * copies(p.b)) +
               m * n * batch * static_cast<double>(size_of(p.d.dtype));
  if (p.c.data && p.beta != 0.0f) plan.bytes += m * n * copies(p.c) * static_cast<double>(size_of(p.c.dtype));
}

}  // namespace

Status make_plan(const Problem& problem, const char* config, const DeviceFacts& facts, Plan& plan) {
  plan = {};
  if (facts.major != 9 || facts.minor != 0)
    return failure(Code::kUnsupportedDevice,
                   "hopgemm: %s has compute capability %d.%d; the kernel is for 9.0 (H100, H200) alone."
                   " Pass fallback=True or set HOPGEMM_FALLBACK=1 for the framework's own product",
                   facts.name, facts.major, facts.minor);
  if (problem.sm_limit < 0)
    return failure(Code::kInvalidArgument,
                   "hopgemm: sm_limit is %d; it must be 0 (all SMs) or more. Write 0, or leave it out",
                   problem.sm_limit);
  NormalProblem p;
  HOPGEMM_TRY(normalize(problem, p));
  plan.path = p.path;
  plan.swapped = p.swapped;
  if (p.path == Path::kEmpty) return {};
  describe_traffic(problem, plan);
  if (p.path == Path::kFill) return {};

  plan.pack_a = p.a.pack, plan.pack_b = p.b.pack;
  Choice choice{};
  HOPGEMM_TRY(choose(p, problem, config, facts, choice));
  plan.slower = is_automatic(config) && is_slower(problem, p, facts);
  const Config chosen{choice.instance->config, choice.schedule};
  swap_for(chosen.kernel, p);
  const int64_t tiles = int64_t{ceil_div(p.m, chosen.kernel.tile_m)} * ceil_div(p.n, chosen.kernel.tile_n);
  const TileGrid grid =
      make_tile_grid(chosen, p.m, p.n, p.k, static_cast<int>(p.batch_inner), static_cast<int>(p.batch_outer));
  const int sm_count = sms_to_use(problem, facts),
            cluster = cluster_size(chosen.kernel, chosen.schedule.split);
  if (sm_count < cluster)
    return failure(Code::kInvalidArgument,
                   "hopgemm: config is '%s' and needs clusters of %d SMs; %d may be used. Take a c1x1 config "
                   "or \"auto\"",
                   choice.instance->name, cluster, sm_count);
  format_config(*choice.instance, choice.schedule, plan.config);
  std::memcpy(plan.reason, choice.reason, sizeof plan.reason);
  if (plan.slower) std::strncat(plan.reason, "; cuBLAS was measured faster", 32);
  plan.majors[0] = as_called(chosen.kernel).a_major == Major::kK ? 'k' : 'm';
  plan.majors[1] = as_called(chosen.kernel).b_major == Major::kK ? 'k' : 'n';
  const int piece =
      static_cast<int>(kSwizzleBytes / size_of(p.epilogue.d.dtype));  // columns that leave together
  plan.store = p.epilogue.tma_columns >= piece ? Store::kTma : Store::kDirect;
  plan.tiles = tiles * p.batch_inner * p.batch_outer;
  plan.grid = grid_size(chosen, grid, sm_count);
  plan.waves = static_cast<double>(grid.num_blocks) * cluster / plan.grid;
  plan.launches = Launches(grid, chosen.schedule.waves, plan.grid / cluster).count();
  plan.sums_bytes = sums_bytes(chosen.kernel, grid);
  plan.workspace_bytes = packed_bytes(p) + plan.sums_bytes;
  return {};
}

const char* config_name(int index) {
  return index >= 0 && index < kNumInstances ? kInstances[index].name : nullptr;
}

}  // namespace hopgemm
