// What a user writes in config/*.yaml for `troupe serve`.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/error.hpp"
#include "runtime/model/chat_template.hpp"
#include "runtime/serving/settings.hpp"

namespace troupe {

struct head_config {
  serving_settings settings;
  std::string schedule = "auto";  // name or YAML file; `settings.schedule` is what was read from it
  bool choose_profile = true;     // profile: auto
  bool default_dispatch = true;   // dispatch: auto
  bool default_combine = true;    // combine: auto

  std::string model_name;  // as the API names it; default: the model directory's name
  chat_options chat;
  uint32_t default_max_tokens = 256;
  uint32_t requests_max = 256;

  bool spawn_nodes = true;           // start the other nodes as processes of this machine, and restart them
  std::string listen = "127.0.0.1";  // control and wire address of the head
  uint16_t join_port = 0;            // where nodes join; 0: any free one

  std::string http_address = "127.0.0.1";
  uint16_t http_port = 8000;
  std::string api_key_file;  // empty: no key

  std::string trace;  // file for the timeline of the head's own node; not in YAML
};

// Reads a YAML file. Relative paths in it are relative to its directory.
// Fails: not_found, malformed (not YAML, or a value of another type), invalid_argument (unknown key,
// with the nearest valid name; a value out of range).
result<head_config> load_head_config(const std::filesystem::path& file);

}  // namespace troupe
