// SPDX-License-Identifier: Apache-2.0
#include "hdf5_samples.hpp"

#include "../checksum.hpp"    // for checksum
#include "../errors.hpp"      // for damaged_file_error, input_error
#include "../files.hpp"       // for detail::file_handle
#include "../find_files.hpp"  // for find_files

#include <hdf5.h>

#include <algorithm>    // for min, find, count
#include <array>        // for array
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <utility>      // for exchange

namespace bert {

namespace fs = std::filesystem;

namespace {

constexpr auto block_rows = std::uint64_t{1024};  // read at once

/// Sole owner of an object of HDF5.
class h5_handle {
 public:
  h5_handle(hid_t id, herr_t (*close)(hid_t)) : id_{id}, close_{close} {}
  h5_handle(h5_handle&& other) noexcept
      : id_{std::exchange(other.id_, hid_t{-1})}, close_{other.close_} {}
  h5_handle& operator=(h5_handle&&) = delete;
  ~h5_handle() {
    if (id_ >= 0) { close_(id_); }
  }
  [[nodiscard]] hid_t get() const { return id_; }
  [[nodiscard]] bool valid() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// Keeps HDF5 from printing what we throw.
class quiet {
 public:
  quiet() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  quiet(quiet const&)            = delete;
  quiet& operator=(quiet const&) = delete;
  ~quiet() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_           = nullptr;
};

/// A dataset of one row to a sample: fixed [N] or [N, columns], or [N] of variable length.
class table {
 public:
  table(hid_t file, fs::path const& path, std::string const& name)
      : path_{path},
        name_{name},
        set_{H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose},
        space_{set_.valid() ? H5Dget_space(set_.get()) : hid_t{-1}, H5Sclose} {
    if (!set_.valid()) { fail("is not there"); }
    auto const type = h5_handle{H5Dget_type(set_.get()), H5Tclose};
    variable_       = H5Tget_class(type.get()) == H5T_VLEN;
    auto extents    = std::array<hsize_t, 2>{0, 1};
    auto const rank = H5Sget_simple_extent_ndims(space_.get());
    if (rank < 1 || rank > 2) { fail("has neither one nor two dimensions"); }
    H5Sget_simple_extent_dims(space_.get(), extents.data(), nullptr);
    two_dimensional_ = rank == 2;
    rows_            = extents[0];
    columns_         = extents[1];
  }

  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t columns() const { return columns_; }
  [[nodiscard]] bool variable() const { return variable_; }

  /// Reads rows [first, first + count).
  void read(std::uint64_t first, std::uint64_t count) {
    auto const start  = std::array<hsize_t, 2>{first, 0};
    auto const extent = std::array<hsize_t, 2>{count, columns_};
    auto const memory =
        h5_handle{H5Screate_simple(two_dimensional_ ? 2 : 1, extent.data(), nullptr), H5Sclose};
    H5Sselect_hyperslab(
        space_.get(), H5S_SELECT_SET, start.data(), nullptr, extent.data(), nullptr);
    begins_.assign(1, 0);
    if (variable_) {
      read_variable(memory.get(), count);
      return;
    }
    values_.resize(count * columns_);
    if (H5Dread(
            set_.get(), H5T_NATIVE_INT32, memory.get(), space_.get(), H5P_DEFAULT, values_.data()) <
        0) {
      fail("cannot be read");
    }
    for (auto i = std::uint64_t{1}; i <= count; ++i) { begins_.push_back(i * columns_); }
  }

  /// A row of those that were read last.
  [[nodiscard]] std::span<std::int32_t const> row(std::uint64_t index) const {
    return std::span{values_}.subspan(begins_[index], begins_[index + 1] - begins_[index]);
  }

  [[noreturn]] void fail(std::string const& what) const {
    throw damaged_file_error{path_, "its dataset " + name_ + " " + what};
  }

 private:
  void read_variable(hid_t memory, std::uint64_t count) {
    auto const type = h5_handle{H5Tvlen_create(H5T_NATIVE_INT32), H5Tclose};
    auto rows       = std::vector<hvl_t>(count);
    if (H5Dread(set_.get(), type.get(), memory, space_.get(), H5P_DEFAULT, rows.data()) < 0) {
      fail("cannot be read");
    }
    values_.clear();
    for (auto const& row : rows) {
      auto const* const data = static_cast<std::int32_t const*>(row.p);
      values_.insert(values_.end(), data, data + row.len);
      begins_.push_back(values_.size());
    }
    H5Dvlen_reclaim(type.get(), memory, H5P_DEFAULT, rows.data());
  }

  fs::path path_;
  std::string name_;
  h5_handle set_;
  h5_handle space_;
  bool variable_         = false;
  bool two_dimensional_  = false;
  std::uint64_t rows_    = 0;
  std::uint64_t columns_ = 1;
  std::vector<std::int32_t> values_;
  std::vector<std::uint64_t> begins_;
};

/// The datasets of a file; gives its samples one after another.
class reader {
 public:
  explicit reader(fs::path const& path)
      : path_{path},
        file_{open(path)},
        ids_{file_.get(), path, "input_ids"},
        segments_{file_.get(), path, "segment_ids"},
        positions_{file_.get(), path, "masked_lm_positions"},
        labels_{file_.get(), path, "masked_lm_ids"},
        next_{file_.get(), path, "next_sentence_labels"} {
    if (H5Lexists(file_.get(), "packed_input_len", H5P_DEFAULT) > 0) {
      throw damaged_file_error{path,
                               "holds packed samples, several sequences to a row; give the form "
                               "with one (hdf5_4320_shards_varlength)"};
    }
    if (!ids_.variable()) { mask_.emplace_back(file_.get(), path, "input_mask"); }
    for (auto const* part : {&segments_, &positions_, &labels_, &next_}) {
      if (part->rows() != ids_.rows()) { part->fail("has another number of rows than input_ids"); }
    }
    if (next_.variable() || next_.columns() != 1) { next_.fail("must hold one number to a row"); }
    for (auto const& mask : mask_) {
      if (mask.rows() != ids_.rows() || mask.columns() != ids_.columns()) {
        mask.fail("has another size than input_ids");
      }
    }
  }

  template <class Use>
  void for_each(Use const& use) {
    auto row = hdf5_samples::row{};
    for (auto first = std::uint64_t{0}; first < ids_.rows(); first += block_rows) {
      auto const count = std::min(block_rows, ids_.rows() - first);
      for (auto* part : {&ids_, &segments_, &positions_, &labels_, &next_}) {
        part->read(first, count);
      }
      for (auto& mask : mask_) { mask.read(first, count); }
      for (auto i = std::uint64_t{0}; i < count; ++i) {
        take(i, row);
        use(row);
      }
    }
  }

 private:
  [[nodiscard]] static h5_handle open(fs::path const& path) {
    static_cast<void>(detail::file_handle{path, 0});  // says why it cannot be opened
    auto file = h5_handle{H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
    if (!file.valid()) { throw damaged_file_error{path, "is truncated, or no HDF5 file"}; }
    return file;
  }

  void take(std::uint64_t i, hdf5_samples::row& row) const {
    auto const assign = [](std::span<std::int32_t const> from, std::vector<std::int32_t>& to) {
      to.assign(from.begin(), from.end());
    };
    assign(ids_.row(i), row.ids);
    assign(segments_.row(i), row.segments);
    assign(positions_.row(i), row.positions);
    assign(labels_.row(i), row.labels);
    row.next = next_.row(i)[0];
    if (!mask_.empty()) {  // a run of ones, then padding
      auto const mask = mask_.front().row(i);
      auto const used =
          static_cast<std::size_t>(std::find(mask.begin(), mask.end(), 0) - mask.begin());
      row.ids.resize(used);
      row.segments.resize(used);
      auto const unused = std::find(row.positions.begin(), row.positions.end(), 0);
      row.positions.erase(unused, row.positions.end());
      row.labels.resize(std::min(row.labels.size(), row.positions.size()));
    }
  }

  fs::path path_;
  h5_handle file_;
  table ids_;
  table segments_;
  table positions_;
  table labels_;
  table next_;
  std::vector<table> mask_;  // one, or none
};

/// Why the model cannot take the sample, or nothing.
[[nodiscard]] std::string_view problem_of(hdf5_samples::row const& row,
                                          std::size_t vocab_size,
                                          std::size_t max_length) {
  auto const is_token = [&](std::int32_t id) {
    return id >= 0 && static_cast<std::size_t>(id) < vocab_size;
  };
  auto const all = [](std::vector<std::int32_t> const& values, auto const& test) {
    return std::all_of(values.begin(), values.end(), test);
  };
  if (row.ids.empty()) { return "is empty"; }
  if (row.ids.size() > max_length) { return "is longer than the model's positions"; }
  if (row.segments.size() != row.ids.size()) { return "has not one segment id to a token"; }
  if (row.labels.size() != row.positions.size()) { return "has not one label to a position"; }
  if (!all(row.ids, is_token) || !all(row.labels, is_token)) {
    return "has ids beyond the model's vocabulary";
  }
  if (!std::is_sorted(row.segments.begin(), row.segments.end()) || row.segments.front() < 0 ||
      row.segments.back() > 1) {
    return "has segments that are not 0, then 1";
  }
  if (std::adjacent_find(row.positions.begin(), row.positions.end(), std::greater_equal<>{}) !=
          row.positions.end() ||
      !all(row.positions, [&](std::int32_t p) {
        return p >= 0 && static_cast<std::size_t>(p) < row.ids.size();
      })) {
    return "has positions that do not ascend inside the sample";
  }
  return row.next == 0 || row.next == 1 ? "" : "has a next-sentence label that is not 0 or 1";
}

}  // namespace

hdf5_samples::hdf5_samples(std::span<fs::path const> files,
                           std::size_t vocab_size,
                           std::size_t max_length) {
  if (vocab_size > 65536) { throw input_error{"HDF5 data need a vocabulary of at most 65536"}; }
  auto const silence = quiet{};
  for (auto const& file : files) {
    auto number = std::size_t{0};
    reader{file}.for_each([&](row const& from) {
      auto const problem = problem_of(from, vocab_size, max_length);
      if (!problem.empty()) {
        throw input_error{file.string() + ": sample " + std::to_string(number) + " " +
                          std::string{problem}};
      }
      add(from);
      ++number;
    });
  }
  if (samples_.empty()) { throw input_error{"the HDF5 files hold no sample"}; }
  auto sum = checksum{};
  sum.add(std::as_bytes(std::span{tokens_}));
  sum.add(std::as_bytes(std::span{labels_}));
  sum.add(std::as_bytes(std::span{positions_}));
  for (auto const& s : samples_) { sum.add(std::uint64_t{s.length} << 1U | s.next); }
  fingerprint_ = sum.value();
}

void hdf5_samples::add(row const& from) {
  auto const narrow = [](auto value) { return static_cast<std::uint16_t>(value); };
  auto const second = std::find(from.segments.begin(), from.segments.end(), 1);
  samples_.push_back({tokens_.size(),
                      labels_.size(),
                      narrow(from.ids.size()),
                      narrow(second - from.segments.begin()),
                      narrow(from.positions.size()),
                      static_cast<std::uint8_t>(from.next)});
  for (auto const id : from.ids) { tokens_.push_back(narrow(id)); }
  for (auto const position : from.positions) { positions_.push_back(narrow(position)); }
  for (auto const label : from.labels) { labels_.push_back(narrow(label)); }
}

void hdf5_samples::append(std::uint32_t sample, std::uint32_t /*epoch*/, batch& out) const {
  auto const& s    = samples_[sample];
  auto const widen = [](std::vector<std::uint16_t> const& from, std::uint64_t at, std::size_t n) {
    auto const begin = from.begin() + static_cast<std::ptrdiff_t>(at);
    return std::vector<std::int32_t>(begin, begin + static_cast<std::ptrdiff_t>(n));
  };
  auto segments = std::vector<std::int32_t>(s.length, 1);
  std::fill_n(segments.begin(), s.second, 0);
  out.append(sample,
             widen(tokens_, s.tokens, s.length),
             segments,
             widen(positions_, s.predictions, s.predicted),
             widen(labels_, s.predictions, s.predicted),
             s.next);
}

std::vector<std::uint64_t> hdf5_samples::count_tokens() const {
  auto result = std::vector<std::uint64_t>(65536);
  auto text   = std::vector<std::uint16_t>{};
  for (auto const& s : samples_) {
    auto const begin = tokens_.begin() + static_cast<std::ptrdiff_t>(s.tokens);
    text.assign(begin, begin + s.length);
    for (auto i = std::size_t{0}; i < s.predicted; ++i) {
      text[positions_[s.predictions + i]] = labels_[s.predictions + i];
    }
    for (auto i = std::size_t{1}; i + 1 < text.size(); ++i) { ++result[text[i]]; }
  }
  while (!result.empty() && result.back() == 0) { result.pop_back(); }
  return result;
}

std::vector<fs::path> find_hdf5_files(std::span<fs::path const> inputs) {
  constexpr auto extensions = std::array<std::string_view, 2>{".hdf5", ".h5"};
  return find_files(inputs, extensions, "HDF5 data");
}

}  // namespace bert
