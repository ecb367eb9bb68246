#include "runtime/placement/pickle.hpp"

#include <cstring>
#include <map>

namespace troupe {

const pickle_value* pickle_value::find(std::string_view key) const {
  if (what != kind::dictionary) return nullptr;
  for (size_t i = 0; i + 1 < items.size(); i += 2)
    if (items[i]->what == kind::text && items[i]->text == key) return items[i + 1];
  return nullptr;
}

class pickle_machine {
 public:
  pickle_machine(std::string_view bytes, const std::string& source) : left_(bytes), source_(source) {}

  result<pickle_document> run() {
    while (!done_ && failure_.empty()) step();
    if (failure_.empty() && (stack_.size() != 1 || stack_.back() == nullptr))
      failure_ = "it leaves more than one value";
    if (!failure_.empty()) return error{errc::malformed, source_ + ": its pickle cannot be read: " + failure_};
    document_.root_ = stack_.back();
    return std::move(document_);
  }

 private:
  using kind = pickle_value::kind;

  void fail(std::string why) {
    if (failure_.empty()) failure_ = std::move(why);
    left_ = {};
  }

  template <class Number>
  Number fixed() {
    Number value{};
    if (left_.size() < sizeof value) {
      fail("it is cut short");
      return value;
    }
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string take(uint64_t length) {
    if (length > left_.size()) {
      fail("it is cut short");
      return {};
    }
    std::string text(left_.substr(0, length));
    left_.remove_prefix(length);
    return text;
  }
  std::string line() {
    const auto end = left_.find('\n');
    if (end == std::string_view::npos) {
      fail("it is cut short");
      return {};
    }
    auto text = take(end);
    left_.remove_prefix(1);
    return text;
  }

  pickle_value& push(kind what) {
    auto& made = *document_.values_.emplace_back(std::make_unique<pickle_value>());
    made.what = what;
    stack_.push_back(&made);
    return made;
  }
  pickle_value* pop() {
    if (stack_.empty() || stack_.back() == nullptr) {
      fail("it takes a value where there is none");
      return &nothing_;
    }
    auto* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  // What lies above the last mark, which goes.
  std::vector<const pickle_value*> above_mark() {
    size_t mark = stack_.size();
    while (mark > 0 && stack_[mark - 1] != nullptr) --mark;
    if (mark == 0) {
      fail("a mark is missing");
      return {};
    }
    std::vector<const pickle_value*> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  void push_list(std::vector<const pickle_value*> items) { push(kind::list).items = std::move(items); }
  void take_tuple(size_t count) {
    std::vector<const pickle_value*> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_list(std::move(items));
  }
  void append(std::vector<const pickle_value*> items, kind to) {
    auto* target = pop();
    if (target->what != to || (to == kind::dictionary && items.size() % 2 != 0))
      return fail("it fills what it cannot fill");
    target->items.insert(target->items.end(), items.begin(), items.end());
    stack_.push_back(target);
  }
  void remember(uint32_t place) {
    auto* value = pop();
    stack_.push_back(value);
    memo_[place] = value;
  }
  void recall(uint32_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) return fail("it recalls what it never kept");
    stack_.push_back(found->second);
  }
  // Two's complement, little-endian, of up to eight bytes.
  void push_long(uint8_t length) {
    const auto bytes = take(length);
    if (length > 8) return fail("a number has more than 64 bits");
    uint64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    if (length > 0 && length < 8 && (bytes.back() & 0x80) != 0) value |= ~uint64_t{0} << (8 * length);
    push(kind::integer).integer = static_cast<int64_t>(value);
  }

  void step() {
    const auto operation = fixed<uint8_t>();
    switch (operation) {
      case 0x80: fixed<uint8_t>(); return;                                // PROTO
      case 0x95: fixed<uint64_t>(); return;                               // FRAME
      case '.': done_ = true; return;                                     // STOP
      case '(': stack_.push_back(nullptr); return;                        // MARK
      case '0': pop(); return;                                            // POP
      case 'N': push(kind::none); return;                                 // NONE
      case 0x88: push(kind::boolean).integer = 1; return;                 // NEWTRUE
      case 0x89: push(kind::boolean); return;                             // NEWFALSE
      case 'J': push(kind::integer).integer = fixed<int32_t>(); return;   // BININT
      case 'K': push(kind::integer).integer = fixed<uint8_t>(); return;   // BININT1
      case 'M': push(kind::integer).integer = fixed<uint16_t>(); return;  // BININT2
      case 0x8a: push_long(fixed<uint8_t>()); return;                     // LONG1
      case 'G': take(8), push(kind::real); return;                        // BINFLOAT
      case 'X': push(kind::text).text = take(fixed<uint32_t>()); return;  // BINUNICODE
      case 0x8c: push(kind::text).text = take(fixed<uint8_t>()); return;  // SHORT_BINUNICODE
      case ')': push(kind::list); return;                                 // EMPTY_TUPLE
      case 0x85: return take_tuple(1);                                    // TUPLE1
      case 0x86: return take_tuple(2);                                    // TUPLE2
      case 0x87: return take_tuple(3);                                    // TUPLE3
      case 't': return push_list(above_mark());                           // TUPLE
      case ']': push(kind::list); return;                                 // EMPTY_LIST
      case 'a': {                                                         // APPEND
        const auto* item = pop();
        return append({item}, kind::list);
      }
      case 'e': return append(above_mark(), kind::list);  // APPENDS
      case '}': push(kind::dictionary); return;           // EMPTY_DICT
      case 's': {                                         // SETITEM
        const auto* value = pop();
        const auto* key = pop();
        return append({key, value}, kind::dictionary);
      }
      case 'u': return append(above_mark(), kind::dictionary);  // SETITEMS
      case 'c': {                                               // GLOBAL
        const auto module = line();
        push(kind::global).text = module + " " + line();
        return;
      }
      case 0x93: {  // STACK_GLOBAL
        const auto* name = pop();
        const auto* module = pop();
        push(kind::global).text = module->text + " " + name->text;
        return;
      }
      case 'R': {  // REDUCE
        const auto* arguments = pop();
        const auto* function = pop();
        push(kind::call).items = {function, arguments};
        return;
      }
      case 'Q': {  // BINPERSID
        const auto* identity = pop();
        push(kind::persistent).items = {identity};
        return;
      }
      case 'b': pop(); return;                                          // BUILD: attributes, not needed
      case 'q': return remember(fixed<uint8_t>());                      // BINPUT
      case 'r': return remember(fixed<uint32_t>());                     // LONG_BINPUT
      case 0x94: return remember(static_cast<uint32_t>(memo_.size()));  // MEMOIZE
      case 'h': return recall(fixed<uint8_t>());                        // BINGET
      case 'j': return recall(fixed<uint32_t>());                       // LONG_BINGET
      default: return fail("operation " + std::to_string(operation) + " is not one that a saved tensor needs");
    }
  }

  std::string_view left_;
  const std::string& source_;
  pickle_document document_;
  std::vector<pickle_value*> stack_;  // null: a mark
  std::map<uint32_t, pickle_value*> memo_;
  pickle_value nothing_;
  std::string failure_;
  bool done_ = false;
};

result<pickle_document> pickle_document::parse(std::string_view bytes, const std::string& source) {
  constexpr size_t bytes_max = 1 << 20;  // the pickle of a few tensors is a few hundred bytes; their data is elsewhere
  if (bytes.size() > bytes_max) return error{errc::unsupported, source + ": its pickle is larger than 1 MiB"};
  return pickle_machine(bytes, source).run();
}

}  // namespace troupe
