// Carries precompiled.hpp for the tests.
// SPDX-License-Identifier: MIT
