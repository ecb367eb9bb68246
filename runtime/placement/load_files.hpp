// Loads in files: CSV, a compact binary form, and what other systems record.
//
// docs/policies.md lists the forms. Nothing in a file is trusted: every size is checked against the file's own
// length before memory is taken. Any thread.
#pragma once

#include <string>

#include "runtime/error.hpp"
#include "runtime/placement/load.hpp"

namespace troupe {

// Reads any of the forms; the first bytes tell which:
//   CSV           a header `window,layer,expert,rows` or `window,source,layer,expert,rows`, then such lines; where
//                 pairs are known, a second header `window,layer,a,b,tokens` and such lines follow; or no header: a
//                 matrix, a line for each layer, as EPLB takes it
//   binary        "TRPLOAD1", below
//   JSON          a matrix [layers][experts], or steps of them, alone or as "logical_count" (SGLang)
//   .npy          an array [layers, experts] or [steps, layers, experts] of integers or floats
//   .pt           SGLang's recording, or such a tensor saved alone
// Steps become windows. In a `logical_count`, steps and layers without any rows are left out: the unused part of
// the recorder's buffer, and dense layers. Fails: not_found, malformed, unsupported; the sentence names the file.
result<load_history> read_load(const std::string& path);
result<load_history> parse_load(const std::string& bytes, const std::string& source);

// Writes the binary form, or CSV where the name ends in .csv. Fails: internal.
result<void> write_load(const load_history& load, const std::string& path);

// Binary: 8 bytes "TRPLOAD1"; uint32 layers, experts, windows, sources, little-endian; for each window one byte of
// flags (1: rows by source follow, 2: pairs follow), the rows [layers, experts], by source [sources, layers,
// experts], and the number of pairs with layer, a, b - a and tokens of each, all of these as LEB128 numbers; last
// the FNV-1a hash of all bytes before, uint64 little-endian.
std::string to_binary(const load_history& load);
std::string to_csv(const load_history& load);

// Adds up each `count` windows in sequence, their pairs included; the last may be of fewer.
load_history merge_windows(const load_history& load, uint32_t count);

}  // namespace troupe
