// What nearly all tests include, read once (tests/CMakeLists.txt).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/manager.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>
