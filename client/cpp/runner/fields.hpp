// The fields that a table names, set in a message and compared with one.
#pragma once

#include <stdexcept>
#include <string>

#include <google/protobuf/message.h>
#include <yaml-cpp/yaml.h>

// What was other than the table says.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Sets the given fields; a list or a message is replaced as a whole.
void fill(google::protobuf::Message& message, const YAML::Node& given);

// Throws Mismatch at the first field that differs. A trial's batch size and number are those of its id.
void check(const google::protobuf::Message& message, const YAML::Node& then);

// A node as the table has it.
std::string shown(const YAML::Node& node);
