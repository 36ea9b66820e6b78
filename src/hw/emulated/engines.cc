// What a role sets going: copies, wgmma, stores, and sums for its peers.
#include <cstring>

#include "hw/emulated/role.h"

namespace hopgemm::emulated {

// ---- copies in --------------------------------------------------------------------------------------------

void Role::check_map(const TensorMap& map) {
  constexpr int kAlignment = 16;
  bool aligned = reinterpret_cast<uintptr_t>(map.data) % kAlignment == 0;
  for (int i = 1; i < 4; ++i) aligned &= map.stride[i] % kAlignment == 0;
  if (!aligned) machine_.fail("a tensor map whose address or strides are no multiples of 16 bytes");
}

void Role::require_launches(const char* what) {
  if (launch().begins_early && !waited_for_launches_)
    machine_.fail(text("%s, and the launches before this one may not be done", what));
}

// A box lands in every CTA of the mask on its own, and a large one in two parts.
void Role::load_box(const TensorMap& map, int offset, uint32_t barrier, const int (&at)[4], uint32_t mask) {
  sometimes_pause();
  log("load", offset, map.box_rows * map.row_bytes);
  require_launches("a load");
  check_map(map);
  const int whole = map.box_rows * map.row_bytes;
  const int half = (whole / 2 + load_bytes(config()) - 1) / load_bytes(config()) * load_bytes(config());
  for (int rank = 0; rank < cluster_ctas(); ++rank) {
    if (!(mask >> rank & 1)) continue;
    Cta& to = machine_.ctas_[cta_.first + rank];
    for (int part = 0; part < whole; part += half) {
      const int bytes = std::min(half, whole - part), place = offset + part;
      const std::array<int, 4> corner{at[0], at[1] + part / map.row_bytes, at[2], at[3]};
      const int agent = machine_.first_agent(to) + kLoadAgent + place / load_bytes(config());
      issue(JobKind::kLoad, agent, [this, &map, &to, place, bytes, corner, barrier](Job& job) {
        load_rows(map, to, place, corner, bytes / map.row_bytes, job);
        count_bytes(to, barrier, bytes, job);
        return true;
      });
    }
  }
}

// What a copy has written is there for whoever waits for the barrier.
void Role::count_bytes(Cta& to, uint32_t barrier, int bytes, const Job& job) {
  Clock known = job.clock;
  known.join(job.epoch);
  machine_.signal(find(to, barrier, job.clock, "counts bytes on", true), 0, -bytes, known);
}

void Role::load_rows(const TensorMap& map, Cta& to, int offset, std::array<int, 4> at, int rows,
                     const Job& job) {
  const int bytes = rows * map.row_bytes;
  if (offset < 0 || offset % kAtomBytes != 0 || offset + bytes > operand_bytes(config()))
    machine_.fail(text("a load to %d, outside the stages", offset));
  for (const auto& [place, b] : to.barriers)
    if (static_cast<int>(place) + 8 > offset && static_cast<int>(place) < offset + bytes)
      machine_.fail(text("a load to %d overwrites the barrier at %u", offset, place));
  access(to, offset, bytes, true, job.epoch, job.clock, "a load writes");
  const bool batch_inside = at[2] >= 0 && at[2] < map.size[2] && at[3] >= 0 && at[3] < map.size[3];
  const int columns = map.row_bytes / map.element_bytes;
  for (int r = 0; r < rows; ++r) {
    uint8_t row[kSwizzleBytes] = {};  // outside the tensor: zeros
    const int64_t y = int64_t{at[1]} + r;
    const int64_t from = std::max<int64_t>(at[0], 0),
                  to_column = std::min<int64_t>(int64_t{at[0]} + columns, map.size[0]);
    if (batch_inside && y >= 0 && y < map.size[1] && from < to_column)
      std::memcpy(row + (from - at[0]) * map.element_bytes,
                  map.data + from * map.element_bytes + y * map.stride[1] + at[2] * map.stride[2] +
                      at[3] * map.stride[3],
                  (to_column - from) * map.element_bytes);
    tsan::write(&to.smem[offset + r * map.row_bytes], map.row_bytes);
    for (int byte = 0; byte < map.row_bytes; byte += 16)
      std::memcpy(&to.smem[swizzled(offset + r * map.row_bytes + byte, map.row_bytes)], row + byte, 16);
  }
}

// ---- wgmma ------------------------------------------------------------------------------------------------

// One k16 slice at a time is read, some time before the wait returns.
void Role::mma_tile(float* acc, int stage, bool accumulate) {
  sometimes_pause();
  log("mma", stage, accumulate);
  ++k_steps_;
  groups_.resize(committed_ + 1);
  ++groups_[committed_].unfinished;
  const int first_row = is_cooperative(config()) ? consumer_ * consumer_m(config()) : 0;
  issue(JobKind::kMma, machine_.first_agent(cta_) + kMmaAgent + consumer_,
        [this, acc, stage, accumulate, first_row, group = committed_, step = 0](Job& job) mutable {
          access(cta_, a_offset(config(), stage) + first_row * kSwizzleBytes,
                 consumer_m(config()) * kSwizzleBytes, false, job.epoch, job.clock, "a wgmma reads A");
          access(cta_, b_offset(config(), stage), b_stage_bytes(config()), false, job.epoch, job.clock,
                 "a wgmma reads B");
          multiply(acc, stage, step, accumulate || step > 0);
          if (++step < kTileK / kMmaK) return false;
          groups_[group].clock.join(job.clock);
          groups_[group].clock.join(job.epoch);
          --groups_[group].unfinished;
          tsan::release(&groups_[group]);
          return true;
        });
}

void Role::mma_commit() {
  sometimes_pause();
  ++committed_;
}

void Role::wait_groups(int pending) {
  sometimes_pause();
  const int target = std::max(0, std::min<int>(committed_ - pending, groups_.size()));
  block({.on = Blocked::On::kGroups, .target = target});
  log("mma_wait", pending, target);
  for (; known_done_ < target; ++known_done_) {
    tsan::acquire(&groups_[known_done_]);
    waited_.join(groups_[known_done_].clock);
  }
  clock_.join(waited_);
}

// ---- results ----------------------------------------------------------------------------------------------

void Role::fence_proxy_async() {
  for (Cta::Slot& s : cta_.slots[consumer_])
    if (s == Cta::Slot::kWritten) s = Cta::Slot::kFenced;
}

// A slot is seen by copies when every thread that wrote it has fenced, and then met the thread that copies.
void Role::consumer_sync() {
  for (int slot = 0; slot < kStagingSlots; ++slot) {
    if (cta_.slots[consumer_][slot] != Cta::Slot::kFenced) continue;
    cta_.slots[consumer_][slot] = Cta::Slot::kVisible;
    const int offset = staging_offset(config(), consumer_, slot);
    tsan::write(&cta_.smem[offset], kStagingBytes);
    std::memcpy(&cta_.smem[offset], &cta_.staged[offset - operand_bytes(config())], kStagingBytes);
  }
}

void Role::claim_box(const void* matrix, int n, int m, int batch_inner, int batch_outer) {
  if (!machine_.stored_.insert({matrix, n, m, batch_inner, batch_outer}).second)
    machine_.fail(
        text("the result at row %d, column %d, batch %d %d is stored twice", m, n, batch_inner, batch_outer));
}

void Role::store(const TensorMap& map, int slot, int n, int m, int batch_inner, int batch_outer,
                 CachePolicy) {
  sometimes_pause();
  log("store", slot, n);
  require_launches("a store");
  check_map(map);
  claim_box(map.data, n, m, batch_inner, batch_outer);
  if (cta_.slots[consumer_][slot] != Cta::Slot::kVisible)
    machine_.fail(
        text("staging slot %d is stored, but copies cannot see yet what was written to it "
             "(fence_proxy_async, consumer_sync)",
             slot));
  stores_.emplace_back();
  const int agent = machine_.first_agent(cta_) + kStoreAgent + consumer_ * kStagingSlots + slot;
  issue(JobKind::kStore, agent,
        [this, &map, slot, n, m, batch_inner, batch_outer, group = stores_.size() - 1,
         data = std::vector<uint8_t>()](Job& job) mutable {
          StoreGroup& g = stores_[group];
          if (!g.read) {
            const int offset = staging_offset(config(), consumer_, slot);
            access(cta_, offset, kStagingBytes, false, job.epoch, job.clock, "a store reads");
            tsan::read(&cta_.smem[offset], kStagingBytes);
            data.assign(&cta_.smem[offset], &cta_.smem[offset] + kStagingBytes);
            g.clock = job.clock;
            g.clock.join(job.epoch);
            g.read = true;
            tsan::release(&g);
            return false;
          }
          // Clipped at 16 bytes, not at the element: what hw.h warns of.
          const int64_t bytes =
              std::min<int64_t>(kSwizzleBytes, (map.size[0] - n) * map.element_bytes + 15) / 16 * 16;
          for (int r = 0; r < kMmaM && m + r < map.size[1] && bytes > 0; ++r) {
            uint8_t row[kSwizzleBytes];
            for (int byte = 0; byte < kSwizzleBytes; byte += 16)
              std::memcpy(row + byte, &data[swizzle128(r, byte)], 16);
            char* const d = map.data + int64_t{n} * map.element_bytes + (m + r) * map.stride[1] +
                            batch_inner * map.stride[2] + batch_outer * map.stride[3];
            tsan::write(d, bytes);
            std::memcpy(d, row, bytes);
          }
          g.done = true;
          tsan::release(&g);
          return true;
        });
}

void Role::store_piece(const EpilogueParams& e, int slot, int columns, int m, int n, const Tile& t) {
  sometimes_pause();
  log("store_direct", slot, n);
  require_launches("a direct store");
  claim_box(e.d.data, n, m, t.batch_inner, t.batch_outer);
  const int size = static_cast<int>(size_of(e.d.dtype));
  const int offset = staging_offset(config(), consumer_, slot);
  access(cta_, offset, kStagingBytes, false, {agent_, tick_}, clock_, "a direct store reads");
  char* const d = static_cast<char*>(const_cast<void*>(e.d.data));
  const int64_t base = t.batch_inner * e.d.batch_inner_stride + t.batch_outer * e.d.batch_outer_stride;
  for (int r = 0; r < kMmaM && m + r < e.m; ++r) {
    for (int j = 0; j < columns && n + j < e.n; ++j) {
      char* const to = d + (base + (m + r) * e.d.row_stride + n + j) * size;
      tsan::write(to, size);
      std::memcpy(to, &cta_.staged[offset - operand_bytes(config()) + swizzle128(r, j * size)], size);
    }
  }
  stores_.push_back({Clock(), true, true});
}

// ---- partial sums -----------------------------------------------------------------------------------------

int Role::split_rank(int index) const {
  return cta_.rank % cluster_size(config()) + index * cluster_size(config());
}

// The sums are taken at once, and land later, each part on its own.
void Role::send_tile(const float* acc, int split) {
  sometimes_pause();
  require_accumulator();
  const int own = split_index(config(), cta_.rank), length = part_length(config(), split);
  const int offset = part_offset(config(), split, consumer_, own), bytes = part_bytes(config(), split);
  for (int part = 0; part < split; ++part) {
    if (part == own) continue;
    std::vector<float> sums(kWarpgroup * length);
    for (int thread = 0; thread < kWarpgroup; ++thread)
      for (int i = 0; i < length; ++i)
        sums[sum_byte(length, thread, i) / 4] = acc[accumulator_place(thread, part * length + i)];
    const int owner = split_rank(part), agent = kSumsAgent + consumer_ * kMaxSplit + own;
    Cta& to = machine_.ctas_[cta_.first + owner];
    log("send_sums", offset, owner);
    issue(JobKind::kLoad, machine_.first_agent(to) + agent,
          [this, &to, offset, bytes, sums = std::move(sums)](Job& job) {
            access(to, offset, bytes, true, job.epoch, job.clock, "sums are written");
            tsan::write(&to.smem[offset], bytes);
            std::memcpy(&to.smem[offset], sums.data(), bytes);
            count_bytes(to, sums_full(), bytes, job);
            return true;
          });
  }
}

void Role::add_tile(float* acc, int split) {
  sometimes_pause();
  const int own = split_index(config(), cta_.rank), length = part_length(config(), split);
  log("add_sums", own, split);
  for (int source = 0; source < split; ++source) {
    if (source != own)
      access(cta_, part_offset(config(), split, consumer_, source), part_bytes(config(), split), false,
             {agent_, tick_}, clock_, "sums are read");
  }
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    for (int i = 0; i < length; ++i) {
      float& mine = acc[accumulator_place(thread, own * length + i)];
      float sum = 0;
      for (int source = 0; source < split; ++source) {
        float part = mine;
        if (source != own) {
          uint8_t* const place =
              &cta_.smem[part_offset(config(), split, consumer_, source) + sum_byte(length, thread, i)];
          tsan::read(place, sizeof part);
          std::memcpy(&part, place, sizeof part);
        }
        sum = source == 0 ? part : sum + part;
      }
      mine = sum;
    }
  }
}

void Role::store_tile(const float* acc, const EpilogueParams& e, const Tile& t, int split) {
  sometimes_pause();
  require_accumulator();
  require_launches("a sum is stored");
  const int own = split_index(config(), cta_.rank);
  log("store_sums", own, split);
  for (int row = 0; row < kMmaM; ++row)
    for (int col = 0; col < config().tile_n; ++col)
      if (part_of(config(), accumulator_index(row, col), split) == own)
        store_element(e, t, t.m + row, t.n + col, acc[row * config().tile_n + col]);
}

int Role::accumulator_place(int thread, int index) const {
  const RowCol at = accumulator_at(thread, index);
  return at.row * config().tile_n + at.col;
}

void Role::store_element(const EpilogueParams& e, const Tile& t, int m, int n, float value) {
  if (m >= e.m || n >= e.n) return;
  claim_box(e.d.data, n, m, t.batch_inner, t.batch_outer);
  tsan::write(write_element(e, config().dtype, t, m, n, value), static_cast<int>(size_of(e.d.dtype)));
}

void Role::arrive_split(uint32_t offset, int split) {
  sometimes_pause();
  log("arrive_split", offset, split);
  for (int i = 0; i < split; ++i) arrive_remote(offset, split_rank(i), clock_);
}

void Role::learn_of_stores(int count) {
  for (int i = 0; i < count; ++i) {
    tsan::acquire(&stores_[i]);
    clock_.join(stores_[i].clock);
  }
}

void Role::wait_stores_read(int pending) {
  sometimes_pause();
  const int target = std::max(0, static_cast<int>(stores_.size()) - pending);
  block({.on = Blocked::On::kStoresRead, .target = target});
  learn_of_stores(target);
  consumer_sync();
}

void Role::store_drain() {
  sometimes_pause();
  block({.on = Blocked::On::kStores});
  learn_of_stores(static_cast<int>(stores_.size()));
}

}  // namespace hopgemm::emulated
