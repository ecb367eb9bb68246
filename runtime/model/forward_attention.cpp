// The core of attention in a forward pass: queries into the latents' space, attention, and back to heads.
#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/model/forward.hpp"

namespace troupe {

namespace {

size_t product(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

}  // namespace

// absorbed[i, j] = [UK_j^T q_nope[i, j] ; rotated q_rope[i, j]], then the queries of each row.
void forward_pass::absorb_queries(micro_batch_rows& batch, int layer, int first, int count, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)].attention;
  const int h = config_.num_attention_heads;
  const int rk = config_.kv_lora_rank;
  const int dr = config_.qk_rope_head_dim;
  const int dn = config_.qk_nope_head_dim;
  const int dq = config_.dq();
  const auto kind = rounds_norms_ ? kernels::element::bf16 : kernels::element::f32;
  const size_t element_bytes = rounds_norms_ ? sizeof(uint16_t) : sizeof(float);
  const size_t latent_bytes = static_cast<size_t>(rk) * element_bytes;
  const size_t key_bytes = static_cast<size_t>(dr) * element_bytes;
  const auto absorbed = [&](int i, int j) {
    return batch.absorbed.data() + static_cast<size_t>(i * h + j) * (latent_bytes + key_bytes);
  };
  team.parallel("absorb keys", h, [&](int j, worker_memory& memory) {
    std::byte* input = memory.kernel.take(math_.input_bytes(count, dn));
    std::array<std::byte*, attention_rows> rows;
    for (int i = 0; i < count; ++i) {
      float* q = batch.q.data() + product(first + i, h * dq) + j * dq;
      math_.input_row(q, i, dn, input);
      kernels::rope_rotate(q + dn, batch.cosines.data() + product(first + i, dr / 2),
                           batch.sines.data() + product(first + i, dr / 2), dr);
      rows[static_cast<size_t>(i)] = absorbed(i, j);
      std::byte* key = absorbed(i, j) + latent_bytes;
      if (rounds_norms_)
        kernels::bf16_round_row(q + dn, reinterpret_cast<uint16_t*>(key), dr);
      else
        std::memcpy(key, q + dn, key_bytes);
    }
    math_.matmul_apart(weights.uk[static_cast<size_t>(j)], {input, count, dn}, kind, rows.data(), 0, rk);
  });
  const auto shape = attention_shape();
  const size_t query_bytes = math_.form_of(shape).query_bytes;
  team.parallel("queries", count, [&](int i, worker_memory&) {
    std::byte* to = batch.queries.data() + static_cast<size_t>(i) * query_bytes;
    if (rounds_norms_)
      math_.mla_query(shape, reinterpret_cast<const uint16_t*>(absorbed(i, 0)), 0, h, to);
    else
      math_.mla_query(shape, reinterpret_cast<const float*>(absorbed(i, 0)), 0, h, to);
  });
}

// Cuts the attention of rows [first, first + count) into items: runs of rows of one sequence; with too few rows for
// the threads, a row's spans or its heads.
void forward_pass::divide_attention(micro_batch_rows& batch, int first, int count, int threads) const {
  const auto form = math_.form_of(attention_shape());
  const int h = config_.num_attention_heads;
  auto& items = batch.attention_items;
  items.clear();
  const auto row_at = [&](int i) -> const row_input& { return batch.inputs[static_cast<size_t>(first + i)]; };
  int partials = 0;
  const bool few = count < 2 * threads;
  const int run_max = std::max(1, std::min(8, count / (2 * threads)));
  for (int i = 0; i < count;) {
    const int length = row_at(i).position + 1;
    if (few && form.span > 0 && length > form.span) {
      for (int span = 0; span * form.span < length; ++span) items.push_back({i, 1, 0, h, span, partials++});
      ++i;
      continue;
    }
    const int parts = few ? std::min(threads, h / form.heads_together) : 1;
    int run = 1;
    while (run < run_max && i + run < count && row_at(i + run).blocks == row_at(i).blocks) ++run;
    if (parts <= 1) {
      items.push_back({i, run, 0, h});
    } else {
      const int groups = h / form.heads_together;
      for (int part = 0; part < parts; ++part)
        items.push_back({i, run, groups * part / parts * form.heads_together,
                         part + 1 == parts ? h : groups * (part + 1) / parts * form.heads_together});
    }
    i += run;
  }
  batch.partials.resize(static_cast<size_t>(partials) * form.partial_bytes);
}

// heads_input: UV_j of each attended head.
void forward_pass::join_heads(micro_batch_rows& batch, int layer, int first, int count, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)].attention;
  const int h = config_.num_attention_heads;
  const int rk = config_.kv_lora_rank;
  const int dv = config_.v_head_dim;
  const auto shape = attention_shape();
  const size_t attended_bytes = math_.form_of(shape).attended_bytes;
  team.parallel("absorb values", h, [&](int j, worker_memory& memory) {
    std::byte* input = memory.kernel.take(math_.input_bytes(count, rk));
    for (int i = 0; i < count; ++i)
      math_.mla_input_row(shape, batch.attended.data() + static_cast<size_t>(i) * attended_bytes, j, i, input);
    math_.matmul(weights.uv[static_cast<size_t>(j)], {input, count, rk}, batch.heads_out.data() + j * dv, h * dv, 0,
                 dv);
  });
  team.parallel("heads", count, [&](int i, worker_memory&) {
    math_.input_row(batch.heads_out.data() + product(i, h * dv), first + i, h * dv, batch.heads_input.data());
  });
}

// Spans of one row that a member attends to one after the other from the first on share that one's partial result.
void forward_pass::attend(micro_batch_rows& batch, kv_cache& cache, int layer, int first, int count,
                          worker_team& team) const {
  const auto shape = attention_shape();
  const auto form = math_.form_of(shape);
  absorb_queries(batch, layer, first, count, team);
  divide_attention(batch, first, count, team.size());
  const auto row_of = [&](int i) {
    return kernels::mla_row{batch.queries.data() + static_cast<size_t>(i) * form.query_bytes,
                            batch.attended.data() + static_cast<size_t>(i) * form.attended_bytes,
                            batch.inputs[static_cast<size_t>(first + i)].position + 1};
  };
  const auto partial = [&](int number) {
    return batch.partials.data() + static_cast<size_t>(number) * form.partial_bytes;
  };
  auto& items = batch.attention_items;
  team.parallel_runs(
      "attention", static_cast<int>(items.size()), [&](int number, const item_run& run, worker_memory& memory) {
        auto& item = items[static_cast<size_t>(number)];
        std::array<kernels::mla_row, 8> rows;
        int longest = 0;
        for (int i = 0; i < item.count; ++i) {
          rows[static_cast<size_t>(i)] = row_of(item.first + i);
          longest = std::max(longest, rows[static_cast<size_t>(i)].length);
        }
        const auto& ids = *batch.inputs[static_cast<size_t>(first + item.first)].blocks;
        const size_t count_blocks = static_cast<size_t>(cache.blocks_for(longest));
        auto* blocks = reinterpret_cast<const std::byte**>(memory.workspace.take(count_blocks * sizeof(std::byte*)));
        for (size_t b = 0; b < count_blocks; ++b) blocks[b] = cache.address(ids[b], layer);
        const std::span<const std::byte* const> all{blocks, count_blocks};
        if (item.span < 0) {
          math_.mla_attend(shape, cache.layout(), all, {rows.data(), static_cast<size_t>(item.count)}, item.head_begin,
                           item.head_end, memory.kernel);
          return;
        }
        const bool same_row = run.next >= 0 && items[static_cast<size_t>(run.next)].first == item.first;
        item.merged = number - item.span >= run.begin;
        math_.mla_attend_span(shape, cache.layout(), all, rows[0],
                              {.index = item.span,
                               .next = same_row ? items[static_cast<size_t>(run.next)].span : -1,
                               .merge = item.merged && item.span > 0},
                              item.head_begin, item.head_end, partial(item.partial - (item.merged ? item.span : 0)),
                              memory.kernel);
      });
  for (size_t at = 0; at < items.size();) {
    const auto& item = items[at];
    if (item.span < 0) {
      ++at;
      continue;
    }
    int spans = 0, merged = 0;
    for (; at < items.size() && items[at].first == item.first; ++at, ++spans) merged += items[at].merged ? 1 : 0;
    const int pieces = spans > merged ? team.size() : 1;
    team.parallel("merge", pieces, [&](int piece, worker_memory&) {
      math_.mla_merge(shape, partial(item.partial), merged, spans, row_of(item.first), piece, pieces);
    });
  }
  join_heads(batch, layer, first, count, team);
}

}  // namespace troupe
