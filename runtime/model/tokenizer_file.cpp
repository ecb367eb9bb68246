#include "runtime/model/tokenizer_file.hpp"

#include <unordered_map>
#include <utility>

#include "runtime/model/byte_alphabet.hpp"
#include "runtime/model/json_text.hpp"

namespace troupe {

namespace {

using nlohmann::json;

constexpr const char* file_name = "tokenizer.json";
// Ids may leave gaps, but not so many that the table of tokens outgrows the file.
constexpr uint64_t id_gaps_max = 65536;
constexpr size_t splits_max = 32;

using key_ids = std::unordered_map<std::string_view, int32_t>;

error refusal(errc code, std::string complaint) {
  return error{code, std::string(file_name) + ": " + std::move(complaint) + "."};
}

// Whether `object` is absent, null, or an object of type `type`.
bool is_absent_or(const json& object, const char* type) {
  return object.is_null() || (object.is_object() && object.contains("type") && object["type"] == type);
}

std::string type_of(const json& component) {
  if (!component.is_object() || !component.contains("type") || !component["type"].is_string()) return "without a type";
  return shown(component["type"].get_ref<const std::string&>());
}

const json& field(const json& object, const char* name) {
  static const json none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

// Whether an optional setting is absent or has the only value this runtime implements.
bool is_unset_or(const json& object, const char* name, const json& value) {
  const json& found = field(object, name);
  return found.is_null() || found == value;
}

// Steps of the pre-tokenizer, except the last, which must be ByteLevel.
result<std::string> parse_split(const json& step) {
  if (type_of(step) == "\"Digits\"")
    return std::string(field(step, "individual_digits") == true ? "\\p{N}" : "\\p{N}+");
  if (type_of(step) != "\"Split\"")
    return refusal(errc::unsupported, "the pre-tokenizer " + type_of(step) + " is not supported");
  const json& pattern = field(step, "pattern");
  const json& regex = pattern.is_object() ? field(pattern, "Regex") : pattern;
  if (!regex.is_string() || !pattern.is_object()) {
    return refusal(errc::unsupported, "a pre-tokenizer \"Split\" without a regular expression is not supported");
  }
  if (field(step, "behavior") != "Isolated" || !is_unset_or(step, "invert", false)) {
    return refusal(errc::unsupported,
                   "of the pre-tokenizer \"Split\" only the behavior \"Isolated\", not inverted, is supported");
  }
  return regex.get<std::string>();
}

result<std::vector<std::string>> parse_pre_tokenizer(const json& root) {
  const json& top = field(root, "pre_tokenizer");
  json steps = json::array();
  if (type_of(top) == "\"Sequence\"" && field(top, "pretokenizers").is_array()) {
    steps = field(top, "pretokenizers");
  } else if (top.is_object()) {
    steps.push_back(top);
  }
  if (steps.empty() || type_of(steps.back()) != "\"ByteLevel\"") {
    return refusal(errc::unsupported, "only pre-tokenizers that end with \"ByteLevel\" are supported");
  }
  const json& last = steps.back();
  if (field(last, "add_prefix_space") != false || field(last, "use_regex") != false) {
    return refusal(errc::unsupported,
                   "of the pre-tokenizer \"ByteLevel\" only add_prefix_space false and use_regex false are supported");
  }
  if (steps.size() > splits_max) return refusal(errc::unsupported, "the pre-tokenizer has too many steps");
  std::vector<std::string> patterns;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    result<std::string> pattern = parse_split(steps[i]);
    if (!pattern) return pattern.failure();
    patterns.push_back(*std::move(pattern));
  }
  return patterns;
}

result<void> check_other_parts(const json& root) {
  const json& normalizer = field(root, "normalizer");
  const bool identity = normalizer.is_null() ||
                        (type_of(normalizer) == "\"Sequence\"" && field(normalizer, "normalizers") == json::array());
  if (!identity) return refusal(errc::unsupported, "the normalizer " + type_of(normalizer) + " is not supported");
  for (const char* part : {"post_processor", "decoder"}) {
    const json& found = field(root, part);
    if (!is_absent_or(found, "ByteLevel")) {
      return refusal(errc::unsupported,
                     std::string("the ") + part + " " + type_of(found) + " is not supported; ByteLevel is");
    }
  }
  return {};
}

result<void> check_model(const json& model) {
  if (type_of(model) != "\"BPE\"")
    return refusal(errc::unsupported, "the model " + type_of(model) + " is not supported; BPE is");
  const std::pair<const char*, json> settings[] = {
      {"dropout", 0.0},           {"unk_token", nullptr},   {"continuing_subword_prefix", ""},
      {"end_of_word_suffix", ""}, {"byte_fallback", false}, {"ignore_merges", false},
  };
  for (const auto& [setting, value] : settings) {
    if (!is_unset_or(model, setting, value)) {
      return refusal(errc::unsupported, "the model's " + std::string(setting) + " is not supported");
    }
  }
  if (!field(model, "vocab").is_object()) return refusal(errc::malformed, "the model has no \"vocab\" object");
  if (!field(model, "merges").is_array()) return refusal(errc::malformed, "the model has no \"merges\" array");
  return {};
}

// Reads the added tokens into `file` and makes room for `id_limit` ids at most.
result<void> parse_added(const json& list, uint64_t id_limit, tokenizer_file& file) {
  for (const json& entry : list) {
    const json& content = entry.is_object() ? field(entry, "content") : entry;
    const json& id = entry.is_object() ? field(entry, "id") : entry;
    if (!content.is_string() || content.get_ref<const std::string&>().empty() ||
        content.get_ref<const std::string&>().size() > added_tokens::content_bytes_max || !id.is_number_unsigned() ||
        id.get<uint64_t>() >= id_limit) {
      return refusal(errc::malformed, "an added token has no valid \"content\" and \"id\"");
    }
    const auto& text = content.get_ref<const std::string&>();
    for (const char* option : {"lstrip", "rstrip", "single_word"}) {
      if (is_unset_or(entry, option, false)) continue;
      return refusal(errc::unsupported,
                     "the added token " + shown(text) + " asks for " + option + ", which is not supported");
    }
    const size_t at = id.get<size_t>();
    if (file.tokens.size() <= at) file.tokens.resize(at + 1);
    if (file.tokens[at].added || !file.added.add(text, static_cast<int32_t>(at))) {
      return refusal(errc::malformed, "the added token " + shown(text) + " or its id comes twice");
    }
    file.tokens[at] = {text, field(entry, "special") == true, true};
  }
  return {};
}

result<key_ids> parse_vocab(const json& vocab, uint64_t id_limit, tokenizer_file& file) {
  key_ids keys;
  keys.reserve(vocab.size());
  for (const auto& [key, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= id_limit) {
      return refusal(errc::malformed, "the token " + shown(key) + " has no valid id");
    }
    const size_t at = id.get<size_t>();
    if (file.tokens.size() <= at) file.tokens.resize(at + 1);
    token_entry& token = file.tokens[at];
    keys.emplace(key, static_cast<int32_t>(at));
    if (token.added && token.bytes == key) continue;
    if (!token.bytes.empty())
      return refusal(errc::malformed, "the token " + shown(key) + " shares its id with another");
    std::optional<std::string> bytes = bytes_of_key(key);
    if (!bytes || bytes->empty()) {
      return refusal(errc::malformed, "the token " + shown(key) + " is not written in the byte alphabet");
    }
    token.bytes = *std::move(bytes);
  }
  return keys;
}

// The token of each byte. Without all of them some text could not be encoded.
result<std::array<int32_t, 256>> find_bytes(const std::vector<token_entry>& tokens) {
  std::array<int32_t, 256> ids;
  ids.fill(-1);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].bytes.size() == 1 && !tokens[id].added)
      ids[static_cast<uint8_t>(tokens[id].bytes[0])] = static_cast<int32_t>(id);
  }
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    if (ids[byte] < 0)
      return refusal(errc::malformed, "the vocabulary has no token for the byte " + std::to_string(byte));
  }
  return ids;
}

// "left right" or ["left", "right"].
std::optional<std::pair<std::string_view, std::string_view>> split_merge(const json& entry) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(entry[0].get_ref<const std::string&>(),
                                                         entry[1].get_ref<const std::string&>());
  }
  if (!entry.is_string()) return std::nullopt;
  const std::string_view text = entry.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == text.npos) return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

result<void> parse_merges(const json& merges, const key_ids& keys, byte_pairs& pairs) {
  uint32_t rank = 0;
  std::string whole;
  for (const json& entry : merges) {
    const std::string which = "the merge number " + std::to_string(rank);
    const auto split = split_merge(entry);
    if (!split) return refusal(errc::malformed, which + " is neither \"a b\" nor a pair");
    whole.assign(split->first).append(split->second);
    const auto left = keys.find(split->first);
    const auto right = keys.find(split->second);
    const auto made = keys.find(whole);
    if (left == keys.end() || right == keys.end() || made == keys.end()) {
      return refusal(errc::malformed, which + " uses a token that the vocabulary lacks");
    }
    if (!pairs.add(left->second, right->second, {rank, made->second}))
      return refusal(errc::malformed, which + " comes twice");
    ++rank;
  }
  return {};
}

// A token in tokenizer_config.json: a string, or an object with "content".
std::optional<std::string> parse_named_token(json_fields& fields, const char* name) {
  const json* found = fields.get(name);
  if (found == nullptr) return std::nullopt;
  const json& text = found->is_object() ? field(*found, "content") : *found;
  fields.require(text.is_string(), errc::malformed, std::string("\"") + name + "\" must be a token");
  return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
}

}  // namespace

result<tokenizer_file> parse_tokenizer_file(std::string_view text) {
  const result<json> parsed = parse_json(text, file_name);
  if (!parsed) return parsed.failure();
  const json& root = *parsed;
  if (!root.is_object()) return refusal(errc::malformed, "it must be a JSON object");
  result<std::vector<std::string>> patterns = parse_pre_tokenizer(root);
  if (!patterns) return patterns.failure();
  if (const auto checked = check_other_parts(root); !checked) return checked.failure();
  const json& model = field(root, "model");
  if (const auto checked = check_model(model); !checked) return checked.failure();

  const json& vocab = field(model, "vocab");
  const json& merges = field(model, "merges");
  const json& added = field(root, "added_tokens");
  if (!added.is_null() && !added.is_array()) return refusal(errc::malformed, "\"added_tokens\" must be an array");
  const uint64_t id_limit = vocab.size() + added.size() + id_gaps_max;
  tokenizer_file file{{}, *std::move(patterns), byte_pairs({}, 0), {}};
  if (const auto read = parse_added(added, id_limit, file); !read) return read.failure();
  const result<key_ids> keys = parse_vocab(vocab, id_limit, file);
  if (!keys) return keys.failure();
  const result<std::array<int32_t, 256>> byte_ids = find_bytes(file.tokens);
  if (!byte_ids) return byte_ids.failure();
  file.pairs = byte_pairs(*byte_ids, merges.size());
  if (const auto read = parse_merges(merges, *keys, file.pairs); !read) return read.failure();
  return file;
}

result<tokenizer_settings> parse_tokenizer_settings(std::string_view text) {
  tokenizer_settings settings;
  if (text.empty()) return settings;
  const result<json> parsed = parse_json(text, "tokenizer_config.json");
  if (!parsed) return parsed.failure();
  json_fields fields(*parsed, "tokenizer_config.json");
  settings.bos = parse_named_token(fields, "bos_token");
  settings.eos = parse_named_token(fields, "eos_token");
  settings.add_bos = fields.boolean("add_bos_token", false);
  if (fields.failure()) return *fields.failure();
  return settings;
}

}  // namespace troupe
