// Replays behaviour tables against a server: runner --server HOST:PORT FILE...
//
// Prints one line of JSON per scenario, and exits with 1 if one failed.
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "fields.hpp"
#include "replay.hpp"

namespace {

// The scenarios that this client cannot replay, with the reason, by name.
const std::map<std::string, std::string> kLeftOut = {};

struct Outcome {
  std::string outcome;
  std::string why;
};

Outcome outcome_of(wattwise::Client& client, const YAML::Node& scenario, const std::string& suffix) {
  if (const auto found = kLeftOut.find(text(scenario, "name")); found != kLeftOut.end()) {
    return {"left out", found->second};
  }
  try {
    replay(client, scenario, suffix);
  } catch (const std::exception& error) {
    return {"failed", error.what()};
  }
  return {"passed", ""};
}

// A JSON string.
std::string quoted(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(value, &json).ok()) {
    throw std::runtime_error("not valid in JSON: " + text);
  }
  return json;
}

void print(const std::string& file, const std::string& scenario, const Outcome& outcome) {
  std::cout << "{\"file\": " << quoted(file) << ", \"scenario\": " << quoted(scenario)
            << ", \"outcome\": " << quoted(outcome.outcome) << ", \"why\": " << quoted(outcome.why) << "}" << std::endl;
}

int replay_tables(const std::string& server, const std::vector<std::string>& paths) {
  wattwise::Client client(server, wattwise::Credentials::from_env());
  const std::string run_id = "cpp-" + wattwise::new_id().substr(0, 8);
  bool failed = false;
  for (const auto& path : paths) {
    const std::string file = path.substr(path.find_last_of('/') + 1);
    int number = 0;
    for (const auto& scenario : YAML::LoadFile(path)) {
      const Outcome outcome = outcome_of(client, scenario, run_id + "-" + file + "-" + std::to_string(number++));
      print(file, text(scenario, "name"), outcome);
      failed = failed || outcome.outcome == "failed";
    }
  }
  return failed ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> args(arguments + 1, arguments + count);
  if (args.size() < 3 || args[0] != "--server") {
    std::cerr << "usage: runner --server HOST:PORT FILE...\n";
    return 2;
  }
  try {
    return replay_tables(args[1], {args.begin() + 2, args.end()});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
