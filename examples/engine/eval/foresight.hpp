// What an engine could say at best about which entries of a prompt to keep: the full model's own later attention. Stands for
// masks that are learned or made by reinforcement (Attention-Gate, Neural Garbage Collection), whose weights there are
// none of: no row of theirs, but a line above which no mask that is made once, at a prompt's end, is likely to come.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include "stage.hpp"

#include <cstddef>
#include <vector>

namespace eval {

/// (P, H) for one layer: what the prompt's last query and every decoded one attend of each entry, summed over them and the
/// head's group, as a multiple of an even share; an entry counts as much as the best of its 5 neighbours on either side,
/// since an answer's later tokens, which are not known here, look at what follows. Less than an even share is 0: not worth
/// keeping. Cost: (S + 1) P dot products per query head.
[[nodiscard]] std::vector<float> later_attention(const layer_recording& r, const kvtl::shape& shape,
                                                 std::size_t prefilled, std::size_t decoded);

} // namespace eval
