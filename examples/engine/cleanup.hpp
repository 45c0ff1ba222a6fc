// Removes the cache file when the program is interrupted. kvtl removes its file when it is closed; a signal's
// default action ends the program without closing anything, and a library must not install handlers. The model is
// mapped: a read of what another process has cut off is such a signal, too.
// SPDX-License-Identifier: MIT
#pragma once

#include <csignal>
#include <string>

namespace engine {

/// Holds back the signals that would end the program, so that none falls between the creation of a file and
/// its registration. They are delivered when this goes out of scope.
class signal_hold {
  public:
    signal_hold();
    ~signal_hold();
    signal_hold(const signal_hold&) = delete;
    signal_hold& operator=(const signal_hold&) = delete;

  private:
    sigset_t previous_;
};

/// From now on SIGINT, SIGTERM, SIGHUP and SIGPIPE unlink `path` before their default action. One path at a
/// time.
void remove_on_signal(const std::string& path);

/// The file is gone or no longer ours. One that could not be removed and has something in it is named on standard error.
void forget_file();

/// From now on a mapped file that another process cuts short (SIGBUS) ends the program with one line and exit status 1,
/// and takes the registered file along.
void end_when_mapping_is_lost();

} // namespace engine
