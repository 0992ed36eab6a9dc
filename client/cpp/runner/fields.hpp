// The fields that a behaviour table names: filled into a message, and compared with one.
#pragma once

#include <set>
#include <stdexcept>
#include <string>

#include <google/protobuf/message.h>
#include <yaml-cpp/yaml.h>

// A difference between the table and the server's answer.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Sets the given fields; a list or a message is replaced as a whole.
void fill(google::protobuf::Message& message, const YAML::Node& node);

// Throws Mismatch at the first field that differs. A trial's batch_size and trial_number are those of its id.
void check(const google::protobuf::Message& message, const YAML::Node& then);

// Throws Mismatch if the node has an unknown key, which must not be ignored.
void check_keys(const YAML::Node& node, const std::set<std::string>& known);

// The text of a key, or the default if the table does not have it.
std::string text(const YAML::Node& node, const std::string& key, const std::string& otherwise = "");

// A node as YAML.
std::string shown(const YAML::Node& node);
