// Where, when and how a program ran: what a report says of itself, so that its figures can be made again.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace engine {

/// ("date", "2026-05-04 13:20"), ("machine", processor, processors that this process may use, memory) and ("command", as a
/// shell would take it). What the system does not tell is left out.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> report_facts(int argc,
                                                                            const char* const* argv);

} // namespace engine
