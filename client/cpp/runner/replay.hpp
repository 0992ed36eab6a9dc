// Replays one scenario of a behaviour table, as tests/scenarios/README.md describes it.
#pragma once

#include <string>

#include <yaml-cpp/yaml.h>

#include "wattwise.hpp"

// Throws at the first difference. The suffix makes the job's id unique.
void replay(wattwise::Client& client, const YAML::Node& scenario, const std::string& suffix);
