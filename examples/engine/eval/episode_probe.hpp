// The probe of a dialogue's episode: windows of utterances that belong together (kvtl/store/episodes.hpp), by what the model
// makes of their words.
//
// A text is embedded as the sum of the directions of its tokens' rows in the model's table. A token that n of N windows have, and
// the text c times, weighs log(N / n) (1 + log c): what every window says tells none apart. A model of sentences would do
// better; this needs only the model's file.
// Cost: a row of the table for each token, and k-means over the windows.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/store/episodes.hpp>

#include "model.hpp"
#include "tasks.hpp"

#include <cstddef>
#include <vector>

namespace eval {

struct episode_probe {
    std::size_t episode = 0;         ///< the one that the question belongs to
    std::vector<std::size_t> labels; ///< of the dialogue's windows
    std::vector<engine::token_id>
        probe; ///< text of the episode's medoids, whole windows as far as there is room
};

/// Clusters the windows of a dialogue into the config's number of episodes, or fewer where there are fewer windows, and
/// takes the episode that is nearest to what is decoded. Throws run_failure where the config can never work.
[[nodiscard]] episode_probe probe_of(const engine::model& m, const example& e,
                                     const kvtl::episodes_config& config);

} // namespace eval
