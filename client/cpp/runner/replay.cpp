#include "replay.hpp"

#include <algorithm>
#include <set>

#include "fields.hpp"
#include "steps.hpp"

namespace {

// The keys of a step that say how its call must be refused.
const std::set<std::string> kRefusal = {"error", "status", "fields", "metadata"};

const char* status_name(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::CANCELLED: return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND: return "NOT_FOUND";
    case grpc::StatusCode::ALREADY_EXISTS: return "ALREADY_EXISTS";
    case grpc::StatusCode::PERMISSION_DENIED: return "PERMISSION_DENIED";
    case grpc::StatusCode::RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case grpc::StatusCode::UNIMPLEMENTED: return "UNIMPLEMENTED";
    case grpc::StatusCode::INTERNAL: return "INTERNAL";
    case grpc::StatusCode::UNAVAILABLE: return "UNAVAILABLE";
    case grpc::StatusCode::UNAUTHENTICATED: return "UNAUTHENTICATED";
    default: return "UNKNOWN";
  }
}

void check_violations(const wattwise::Error& error, const YAML::Node& expected) {
  std::multiset<std::string> found;
  std::multiset<std::string> wanted;
  std::string all;
  for (const auto& violation : error.violations) {
    found.insert(violation.field);
    all += violation.field + " ";
  }
  for (const auto& item : expected) wanted.insert(item.as<std::string>());
  if (found != wanted) throw Mismatch("was refused for " + all + "not for " + shown(expected));
}

void check_metadata(const wattwise::Error& error, const YAML::Node& expected) {
  for (const auto& entry : expected) {
    const auto key = entry.first.as<std::string>();
    const auto found = error.metadata.find(key);
    const bool there = found != error.metadata.end();
    const bool right = entry.second.IsNull() ? !there
                                             : there && found->second.find(entry.second.Scalar()) != std::string::npos;
    if (!right) {
      throw Mismatch("was refused with metadata[" + key + "] " + (there ? found->second : "unset") + ", not " +
                     shown(entry.second));
    }
  }
}

void check_refusal(const wattwise::Error& error, const YAML::Node& step) {
  if (error.reason != text(step, "error")) {
    throw Mismatch("was refused with '" + error.reason + "', not " + text(step, "error") + ": " + error.what());
  }
  if (const std::string status = status_name(error.code); step["status"] && status != text(step, "status")) {
    throw Mismatch("was refused with status " + status + ", not " + text(step, "status"));
  }
  if (step["fields"]) check_violations(error, step["fields"]);
  if (step["metadata"]) check_metadata(error, step["metadata"]);
}

// A line of a walk: [batch size, cost, converged].
void replay_line(Steps& steps, int number, const YAML::Node& line) {
  const bool converged = line[2].as<bool>();
  YAML::Node args;
  args["trial"] = "walk";
  YAML::Node trial;
  trial["trial_number"] = number;
  trial["batch_size"] = line[0];
  check(*steps.next(args), trial);
  args["epoch"] = converged ? 1 : steps.spec().max_epochs();
  args["cost"] = line[1];
  args["metric"] = converged ? 0.95 : 0.1;
  YAML::Node decision;
  decision["stop_train"] = true;
  decision["converged"] = converged;
  check(*steps.report(args), decision);
}

// The only key of a step that is not an expectation.
std::string name_of(const YAML::Node& step) {
  std::string name;
  for (const auto& entry : step) {
    const auto key = entry.first.as<std::string>();
    if (key == "then" || kRefusal.count(key) > 0) continue;
    if (!name.empty() || !Steps::known(key)) throw Mismatch("unknown to this runner: " + key);
    name = key;
  }
  if (name.empty() || !step[name].IsMap()) throw Mismatch("unknown to this runner: " + shown(step));
  return name;
}

void call_and_compare(Steps& steps, const std::string& name, const YAML::Node& step) {
  const bool refusal = std::any_of(kRefusal.begin(), kRefusal.end(), [&](const auto& key) { return step[key]; });
  Answer answer;
  try {
    answer = steps.take(name, step[name], step["then"]);
  } catch (const wattwise::Error& error) {
    if (!refusal) throw;
    return check_refusal(error, step);
  }
  if (refusal) throw Mismatch("did not fail with " + text(step, "error"));
  if (!step["then"]) return;
  if (!answer) throw Mismatch("has no answer to compare");
  check(*answer, step["then"]);
}

void replay_step(Steps& steps, const YAML::Node& step) {
  const std::string name = name_of(step);
  try {
    call_and_compare(steps, name, step);
  } catch (const std::exception& error) {
    throw Mismatch(name + ": " + error.what());
  }
}

// Adds the place in the scenario to the message of an error.
template <class Function>
void at(const std::string& place, int number, Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    throw Mismatch(place + " " + std::to_string(number) + ", " + error.what());
  }
}

}  // namespace

void replay(wattwise::Client& client, const YAML::Node& scenario, const std::string& suffix) {
  check_keys(scenario, {"name", "job", "walk", "steps", "job_then"});
  Steps steps(client, scenario["job"], suffix);
  steps.register_job({});
  int number = 0;
  for (const auto& line : scenario["walk"]) at("line", ++number, [&] { replay_line(steps, number, line); });
  number = 0;
  for (const auto& step : scenario["steps"]) at("step", ++number, [&] { replay_step(steps, step); });
  if (scenario["job_then"]) check(*steps.get_job({}), scenario["job_then"]);
}
