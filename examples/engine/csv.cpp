// SPDX-License-Identifier: MIT
#include "csv.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <unordered_map>
#include <vector>

namespace engine {

namespace {

using nlohmann::ordered_json;

/// Column names in the order in which they are first met, and the cells of each line.
class table {
  public:
    void add_line() { lines_.emplace_back(); }

    void add(const std::string& name, const ordered_json& value) {
        if (!value.is_structured()) {
            const auto [at, is_new] = places_.try_emplace(name, names_.size());
            if (is_new) names_.push_back(name);
            auto& line = lines_.back();
            if (line.size() <= at->second) line.resize(at->second + 1);
            if (!value.is_null())
                line[at->second] = value.is_string() ? value.get<std::string>() : value.dump();
            return;
        }
        for (const auto& [key, inner] : value.items()) { // of an array: "0", "1", ...
            std::string inner_name = name;
            if (!name.empty()) inner_name += '.';
            add(inner_name += key, inner);
        }
    }

    [[nodiscard]] std::string text() const {
        std::string out = line_of(names_);
        for (const auto& line : lines_) out += '\n' + line_of(line);
        return out;
    }

  private:
    [[nodiscard]] std::string line_of(const std::vector<std::string>& cells) const {
        std::string out;
        for (std::size_t i = 0; i < names_.size(); ++i) {
            if (i != 0) out += ',';
            if (i < cells.size()) out += quoted(cells[i]);
        }
        return out;
    }

    static std::string quoted(const std::string& cell) {
        if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
        std::string out = "\"";
        for (const char c : cell) out += c == '"' ? std::string("\"\"") : std::string(1, c);
        return out + '"';
    }

    std::vector<std::string> names_;
    std::unordered_map<std::string, std::size_t> places_;
    std::vector<std::vector<std::string>> lines_;
};

} // namespace

std::string to_csv(std::string_view rows) {
    table all;
    for (const ordered_json& row : ordered_json::parse(rows)) {
        all.add_line();
        all.add("", row);
    }
    return all.text();
}

} // namespace engine
