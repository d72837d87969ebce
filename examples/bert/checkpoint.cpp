// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include "checksum.hpp"     // for checksum
#include "errors.hpp"       // for damaged_file_error, input_error
#include "files.hpp"        // for mapped_file, pending_file, publish, read_file
#include "safetensors.hpp"  // for safetensors, write_safetensors
#include "weights.hpp"      // for save_weights, load_weights

#include <algorithm>     // for sort, max
#include <array>         // for array
#include <charconv>      // for to_chars
#include <span>          // for span
#include <stdexcept>     // for invalid_argument, logic_error
#include <string>        // for string, stoull
#include <string_view>   // for string_view
#include <system_error>  // for error_code
#include <utility>       // for pair, move

namespace bert {

namespace fs = std::filesystem;
using json   = nlohmann::ordered_json;

namespace {

constexpr auto manifest_name  = "manifest.json";
constexpr auto trainer_name   = "trainer.json";
constexpr auto weights_name   = "model.safetensors";
constexpr auto optimizer_name = "optimizer.safetensors";
constexpr auto prefix         = std::string_view{"step-"};
constexpr auto digits         = std::size_t{8};

[[nodiscard]] std::string hexadecimal(std::uint64_t value) {
  auto text         = std::array<char, 16>{};
  auto const result = std::to_chars(text.data(), text.data() + text.size(), value, 16);
  return {text.data(), result.ptr};
}

void write_text(fs::path const& path, std::string const& text) {
  auto out = pending_file{path};
  out.file().write(text);
  out.publish();
}

[[nodiscard]] std::string directory_name(std::uint64_t step) {
  auto number = std::to_string(step);
  number.insert(0, digits - std::min(digits, number.size()), '0');
  return std::string{prefix} + number;
}

[[nodiscard]] std::optional<std::uint64_t> step_of(fs::path const& directory) {
  auto const name = directory.filename().string();
  if (!name.starts_with(prefix)) { return std::nullopt; }
  auto step         = std::uint64_t{0};
  auto const* begin = name.data() + prefix.size();
  auto const* end   = name.data() + name.size();
  auto const result = std::from_chars(begin, end, step);
  return result.ec == std::errc{} && result.ptr == end ? std::optional{step} : std::nullopt;
}

[[nodiscard]] char const* name_of(update_rule rule) {
  return rule == update_rule::adamw ? "adamw" : "lamb";
}

/// @throws std::invalid_argument for what is no method.
[[nodiscard]] gradlane::balance::dealing dealing_of(std::string const& name) {
  using gradlane::balance::dealing;
  for (auto const method :
       {dealing::none, dealing::raster, dealing::snake, dealing::lpt, dealing::lpt_free}) {
    if (name_of(method) == name) { return method; }
  }
  throw std::invalid_argument{name};
}

[[nodiscard]] json to_json(std::optional<loss_scale_state> const& state) {
  if (!state) { return nullptr; }
  return {{"scale", state->scale}, {"good_steps", state->good_steps}};
}

[[nodiscard]] json to_json(trainer_state const& state) {
  return {{"step", state.step},
          {"place",
           {{"epoch", state.place.window.epoch},
            {"samples_of_epoch", state.place.window.cursor},
            {"samples_of_window", state.place.window.batch},
            {"order", hexadecimal(state.place.window.order)},
            {"steps_of_window", state.place.steps_done}}},
          {"seed", state.seed},
          {"batch_size", state.batch_size},
          {"balance", gradlane::balance::name_of(state.deal)},
          {"window", state.window},
          {"data", hexadecimal(state.data)},
          {"loss_scale", to_json(state.scale)},
          {"optimizer",
           {{"rule", name_of(state.update.rule)},
            {"beta1", state.update.beta1},
            {"beta2", state.update.beta2},
            {"epsilon", state.update.epsilon},
            {"weight_decay", state.update.weight_decay},
            {"bias_correction", state.update.bias_correction},
            {"trust_without_decay", state.update.trust_without_decay}}},
          {"model", json::parse(bert::to_json(state.model))}};
}

void from_json(json const& from, trainer_state& state) {
  state.step       = from.at("step");
  state.seed       = from.at("seed");
  state.batch_size = from.at("batch_size");
  state.deal       = dealing_of(from.at("balance").get<std::string>());
  state.window     = from.at("window");

  auto const& place         = from.at("place");
  state.place.window.epoch  = place.at("epoch");
  state.place.window.cursor = place.at("samples_of_epoch");
  state.place.window.batch  = place.at("samples_of_window");
  state.place.window.order  = std::stoull(place.at("order").get<std::string>(), nullptr, 16);
  state.place.steps_done    = place.at("steps_of_window");
  state.data                = std::stoull(from.at("data").get<std::string>(), nullptr, 16);

  auto const& scale = from.at("loss_scale");
  if (!scale.is_null()) {
    state.scale = loss_scale_state{scale.at("scale"), scale.at("good_steps")};
  }

  auto const& update        = from.at("optimizer");
  state.update.rule         = update.at("rule") == "lamb" ? update_rule::lamb : update_rule::adamw;
  state.update.beta1        = update.at("beta1");
  state.update.beta2        = update.at("beta2");
  state.update.epsilon      = update.at("epsilon");
  state.update.weight_decay = update.at("weight_decay");
  state.update.bias_correction     = update.at("bias_correction");
  state.update.trust_without_decay = update.at("trust_without_decay");

  auto const& model                   = from.at("model");
  state.model.vocab_size              = model.at("vocab_size");
  state.model.hidden_size             = model.at("hidden_size");
  state.model.num_hidden_layers       = model.at("num_hidden_layers");
  state.model.num_attention_heads     = model.at("num_attention_heads");
  state.model.intermediate_size       = model.at("intermediate_size");
  state.model.max_position_embeddings = model.at("max_position_embeddings");
  state.model.type_vocab_size         = model.at("type_vocab_size");
  state.model.layer_norm_eps          = model.at("layer_norm_eps");
  state.model.dropout                 = model.at("hidden_dropout_prob");
}

/// Parses, and says which file it is where that fails.
template <class Use>
void with_json(fs::path const& path, Use const& use) {
  try {
    use(json::parse(read_file(path)));
  } catch (std::logic_error const&) {  // of the parser, and of numbers
    throw damaged_file_error{path, "is damaged: it is no such file as a checkpoint has"};
  } catch (nlohmann::json::exception const&) {
    throw damaged_file_error{path, "is damaged: it is no such file as a checkpoint has"};
  }
}

[[nodiscard]] std::string sum_of(fs::path const& path) {
  auto const content = mapped_file{path};
  auto sum           = checksum{};
  sum.add(content.bytes());
  return hexadecimal(sum.value());
}

[[nodiscard]] std::string sum_of(json const& files) {
  auto sum = checksum{};
  sum.add(files.dump());
  return hexadecimal(sum.value());
}

void write_manifest(fs::path const& directory) {
  auto names = std::vector<std::string>{};
  for (auto const& entry : fs::directory_iterator{directory}) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  auto files = json::object();
  for (auto const& name : names) {
    files[name] = {{"bytes", fs::file_size(directory / name)},
                   {"checksum", sum_of(directory / name)}};
  }
  auto const manifest = json{{"files", files}, {"checksum", sum_of(files)}};
  write_text(directory / manifest_name, manifest.dump(2) + "\n");
}

void check_file(fs::path const& path, json const& entry) {
  auto problem    = std::error_code{};
  auto const size = fs::file_size(path, problem);
  if (problem) { throw damaged_file_error{path, "is missing from the checkpoint"}; }
  auto const bytes = entry.at("bytes").get<std::uint64_t>();
  if (size != bytes) {
    throw damaged_file_error{
        path,
        "is truncated: it has " + std::to_string(size) + " bytes of " + std::to_string(bytes)};
  }
  if (sum_of(path) != entry.at("checksum").get<std::string>()) {
    throw damaged_file_error{path, "is damaged: its checksum is not what was written"};
  }
}

void check_whole(fs::path const& checkpoint) {
  auto const path = checkpoint / manifest_name;
  with_json(path, [&](json const& manifest) {
    auto const& files = manifest.at("files");
    if (sum_of(files) != manifest.at("checksum").get<std::string>()) {
      throw damaged_file_error{path, "is damaged: its checksum is not what was written"};
    }
    for (auto const& [name, entry] : files.items()) { check_file(checkpoint / name, entry); }
    for (auto const* name : {weights_name, optimizer_name, trainer_name}) {
      if (!files.contains(name)) {
        throw damaged_file_error{checkpoint / name, "is missing from the checkpoint"};
      }
    }
  });
}

/// "model.vocab_size is 8192 there, 30522 here" for the first field that differs.
void expect_same(fs::path const& checkpoint,
                 trainer_state const& there,
                 trainer_state const& here) {
  auto const of_there = to_json(there).flatten();
  auto const of_here  = to_json(here).flatten();
  for (auto const& [field, value] : of_there.items()) {
    if (field == "/step" || field.starts_with("/place/") || field.starts_with("/loss_scale")) {
      continue;
    }
    if (value == of_here.at(field)) { continue; }
    throw input_error{"checkpoint " + checkpoint.string() +
                      " is of another run: " + field.substr(1) + " is " + value.dump() +
                      " there, " + of_here.at(field).dump() +
                      " here; give the same settings, or another checkpoint directory"};
  }
}

[[nodiscard]] std::vector<tensor_out> moments(parameter_list const& list,
                                              model_state const& model) {
  auto result = std::vector<tensor_out>{};
  for (auto const& [mark, values] : {std::pair{"m.", model.first}, std::pair{"v.", model.second}}) {
    for (auto& tensor : named_tensors(list, values)) {
      tensor.name = mark + tensor.name;
      result.push_back(std::move(tensor));
    }
  }
  return result;
}

void save_moments(fs::path const& file, parameter_list const& list, model_state const& model) {
  write_safetensors(file, moments(list, model), {{"steps", std::to_string(model.steps)}});
}

/// The file of a rank's moments.
[[nodiscard]] fs::path moments_file(fs::path const& directory, std::size_t rank) {
  if (rank == 0) { return directory / optimizer_name; }
  return directory / ("optimizer-rank-" + std::to_string(rank) + ".safetensors");
}

/// Removes a directory that did not get another name.
struct remover {
  fs::path directory;

  explicit remover(fs::path path) : directory{std::move(path)} {}
  remover(remover const&)            = delete;
  remover& operator=(remover const&) = delete;
  ~remover() {
    auto ignored = std::error_code{};
    fs::remove_all(directory, ignored);
  }
};

}  // namespace

checkpoint_store::checkpoint_store(fs::path root, std::size_t keep)
    : root_{std::move(root)}, keep_{std::max(keep, std::size_t{1})} {}

fs::path checkpoint_store::save(trainer_state const& state,
                                parameter_list const& list,
                                model_state const& model,
                                std::map<std::string, std::string> const& texts,
                                rank_moments const& others) const {
  auto const target    = root_ / directory_name(state.step);
  auto const temporary = root_ / (directory_name(state.step) + ".partial");
  auto const clean     = remover{temporary};
  try {
    fs::remove_all(temporary);
    fs::create_directories(temporary);
    save_weights(temporary / weights_name, list, model.parameters);
    save_moments(moments_file(temporary, 0), list, model);
    for (auto rank = std::size_t{1}; rank < others.ranks; ++rank) {
      save_moments(moments_file(temporary, rank), list, others.of(rank));
    }
    write_text(temporary / trainer_name, to_json(state).dump(2) + "\n");
    write_text(temporary / "config.json", bert::to_json(state.model));
    for (auto const& [name, text] : texts) { write_text(temporary / name, text); }
    write_manifest(temporary);
    fs::remove_all(target);  // of an earlier run that came as far
    publish(temporary, target);
    remove_old();
  } catch (fs::filesystem_error const& problem) {
    throw file_system_error{target, problem.code().message(), problem.code().value()};
  }
  return target;
}

std::vector<fs::path> checkpoint_store::list() const {
  auto found   = std::vector<std::pair<std::uint64_t, fs::path>>{};
  auto problem = std::error_code{};
  for (auto const& entry : fs::directory_iterator{root_, problem}) {
    auto const step = step_of(entry.path());
    if (step && entry.is_directory()) { found.emplace_back(*step, entry.path()); }
  }
  std::sort(found.begin(), found.end());
  auto result = std::vector<fs::path>{};
  for (auto const& [step, path] : found) { result.push_back(path); }
  return result;
}

std::optional<fs::path> checkpoint_store::newest() const {
  auto const all = list();
  return all.empty() ? std::nullopt : std::optional{all.back()};
}

void checkpoint_store::remove_old() const {
  auto const all = list();
  for (auto i = std::size_t{0}; i + keep_ < all.size(); ++i) { fs::remove_all(all[i]); }
}

trainer_state read_trainer_state(fs::path const& checkpoint) {
  auto result = trainer_state{};
  with_json(checkpoint / trainer_name, [&](json const& from) { from_json(from, result); });
  return result;
}

checkpoint load_checkpoint(fs::path const& directory,
                           trainer_state const& wanted,
                           parameter_list const& list,
                           std::size_t rank,
                           std::size_t ranks) {
  check_whole(directory);
  auto result  = checkpoint{};
  result.state = read_trainer_state(directory);
  expect_same(directory, result.state, wanted);

  for (auto* values : {&result.parameters, &result.first, &result.second}) {
    values->resize(list.total());
  }
  load_weights(directory / weights_name, list, result.parameters);
  while (fs::exists(moments_file(directory, result.ranks_with_moments))) {
    ++result.ranks_with_moments;
  }
  auto const own = ranks > 1 && result.ranks_with_moments == ranks;
  auto in        = safetensors{moments_file(directory, own ? rank : 0)};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    auto const& p = list[i];
    in.read("m." + p.name, "F32", p.shape, list.slice(std::span{result.first}, i));
    in.read("v." + p.name, "F32", p.shape, list.slice(std::span{result.second}, i));
  }
  result.steps = std::stoull(in.metadata().at("steps"));
  return result;
}

}  // namespace bert
