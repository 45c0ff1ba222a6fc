// Retention: entries over budget are dropped for good, those with the lowest score first.
//
// slots/retention.hpp explains scores.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

namespace kvtl { inline namespace v0 {

template <class Score> struct drop {
    static constexpr std::string_view name = Score::name;
    static constexpr bool drops = true;
    static constexpr bool merges = false;
    static constexpr engine_input needs = needs_of<Score>();
    static constexpr feedback reads_mass = feedback_of<Score>();
    using score = Score;
    using config = typename Score::config;
};

}} // namespace kvtl::v0
