// SPDX-License-Identifier: MIT
#include "size_probe.hpp"

namespace bench {

size_choice choice_of(const std::vector<tried_size>& tried) {
    constexpr double clearly = .95, mass_lost = .01;
    size_choice best;
    if (tried.empty()) return best;
    const tried_size& largest = tried.front();
    double least_ms = largest.step_ms * clearly;
    for (unsigned turns = 1; turns < tried.size(); ++turns) {
        const tried_size& t = tried[turns];
        const bool as_much = t.mass && largest.mass && *t.mass >= *largest.mass - mass_lost;
        if (!as_much || t.step_ms >= least_ms) continue;
        least_ms = t.step_ms;
        best.turns = turns;
    }
    best.tried = nlohmann::ordered_json::array();
    for (unsigned turns = 0; turns < tried.size(); ++turns) {
        nlohmann::ordered_json settings = nlohmann::ordered_json::object();
        for (const auto& [name, value] : tried[turns].settings)
            for (const tried_size& other : tried) // those that the knob turns
                for (const auto& [same, differs] : other.settings)
                    if (same == name && differs != value) settings[name] = value;
        const auto mass = tried[turns].mass;
        best.tried.push_back({{"step_ms", tried[turns].step_ms},
                              {"mass_recall", mass ? nlohmann::ordered_json(*mass) : nullptr},
                              {"settings", settings},
                              {"taken", turns == best.turns}});
    }
    return best;
}

} // namespace bench
