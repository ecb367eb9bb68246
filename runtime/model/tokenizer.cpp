#include "runtime/model/tokenizer.hpp"

#include <utility>

#include "runtime/model/json_text.hpp"
#include "runtime/model/text_splitter.hpp"
#include "runtime/model/tokenizer_file.hpp"
#include "runtime/model/utf8.hpp"

namespace troupe {

namespace {
constexpr size_t tokenizer_bytes_max = size_t{128} << 20;
constexpr size_t settings_bytes_max = size_t{4} << 20;
}  // namespace

struct tokenizer::contents {
  tokenizer_file file;
  text_splitter splitter;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  bool add_bos = false;

  const token_entry* entry(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < file.tokens.size() ? &file.tokens[static_cast<size_t>(id)] : nullptr;
  }
  // Text without added tokens in it.
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
    for (const std::string_view piece : splitter.split(text)) file.pairs.encode(piece, ids);
  }
};

tokenizer::tokenizer(std::unique_ptr<const contents> held) : held_(std::move(held)) {}
tokenizer::tokenizer(tokenizer&&) noexcept = default;
tokenizer& tokenizer::operator=(tokenizer&&) noexcept = default;
tokenizer::~tokenizer() = default;

result<tokenizer> tokenizer::parse(std::string_view tokenizer_json, std::string_view config_json) {
  result<tokenizer_file> file = parse_tokenizer_file(tokenizer_json);
  if (!file) return file.failure();
  const result<tokenizer_settings> settings = parse_tokenizer_settings(config_json);
  if (!settings) return settings.failure();
  result<text_splitter> splitter = text_splitter::make(file->patterns);
  if (!splitter) return error{splitter.failure().code, "tokenizer.json: " + splitter.failure().message + "."};

  auto held = std::make_unique<contents>(contents{*std::move(file), *std::move(splitter), {}, {}, false});
  const std::pair<const std::optional<std::string>*, std::optional<int32_t>*> named[] = {{&settings->bos, &held->bos},
                                                                                         {&settings->eos, &held->eos}};
  for (const auto& [text, id] : named) {
    if (!*text) continue;
    *id = held->file.added.id_of(**text);
    if (!*id) {
      return error{errc::malformed, "tokenizer_config.json names the token " + shown(**text) +
                                        ", which is not among the added tokens of tokenizer.json."};
    }
  }
  held->add_bos = settings->add_bos && held->bos.has_value();
  return tokenizer(std::move(held));
}

result<tokenizer> tokenizer::load(const std::filesystem::path& directory) {
  const result<std::string> text = read_text_file(directory / "tokenizer.json", tokenizer_bytes_max);
  if (!text) return text.failure();
  const result<std::string> settings = read_text_file(directory / "tokenizer_config.json", settings_bytes_max);
  if (!settings && settings.failure().code != errc::not_found) return settings.failure();
  return parse(*text, settings ? std::string_view(*settings) : std::string_view());
}

std::vector<int32_t> tokenizer::encode(std::string_view text, encode_options options) const {
  std::string repaired;
  if (!is_utf8(text)) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 2);
  if (options.add_bos && held_->add_bos) ids.push_back(*held_->bos);
  size_t done = 0;
  while (options.parse_added) {
    const auto match = held_->file.added.find(text, done);
    if (!match) break;
    held_->encode_plain(text.substr(done, match->begin - done), ids);
    ids.push_back(match->id);
    done = match->end;
  }
  held_->encode_plain(text.substr(done), ids);
  return ids;
}

std::string tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return is_utf8(bytes) ? bytes : repair_utf8(bytes);
}

std::string_view tokenizer::token_bytes(int32_t id) const {
  const token_entry* entry = held_->entry(id);
  return entry != nullptr ? std::string_view(entry->bytes) : std::string_view();
}

bool tokenizer::is_special(int32_t id) const {
  const token_entry* entry = held_->entry(id);
  return entry != nullptr && entry->special;
}

bool tokenizer::is_added(int32_t id) const {
  const token_entry* entry = held_->entry(id);
  return entry != nullptr && entry->added;
}

std::optional<int32_t> tokenizer::find_added(std::string_view text) const { return held_->file.added.id_of(text); }
int32_t tokenizer::size() const { return static_cast<int32_t>(held_->file.tokens.size()); }
std::optional<int32_t> tokenizer::bos() const { return held_->bos; }
std::optional<int32_t> tokenizer::eos() const { return held_->eos; }
bool tokenizer::add_bos() const { return held_->add_bos; }

}  // namespace troupe
