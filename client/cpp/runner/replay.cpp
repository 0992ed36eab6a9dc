#include "replay.hpp"

#include <algorithm>
#include <utility>

#include "fields.hpp"

namespace {

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
  if (found != wanted) throw Mismatch("was refused for " + all + "and not for " + shown(expected));
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

}  // namespace

Replay::Replay(wattwise::Client& client, const YAML::Node& scenario, std::string suffix)
    : client_(client), scenario_(scenario), suffix_(std::move(suffix)) {}

void Replay::run() {
  only(scenario_, {"name", "job", "walk", "steps", "job_then"});
  spec_ = job({});
  client_.register_job(spec_);
  int number = 0;
  for (const auto& line : scenario_["walk"]) follow(++number, line);
  number = 0;
  for (const auto& step : scenario_["steps"]) {
    ++number;
    try {
      take(step);
    } catch (const std::exception& error) {
      throw Mismatch("step " + std::to_string(number) + ", " + error.what());
    }
  }
  if (scenario_["job_then"]) check(client_.get_job(spec_.job_id()), scenario_["job_then"]);
}

v1::JobSpec Replay::job(const YAML::Node& changed) const {
  v1::JobSpec spec;
  spec.set_job_id_prefix("scenario");
  for (const int size : {8, 16, 32, 64}) spec.add_batch_sizes(size);
  spec.set_default_batch_size(16);
  spec.set_eta_knob(1);
  spec.set_target_metric(0.9);
  spec.set_max_epochs(10);
  spec.set_mab_seed(1);
  spec.mutable_gpu()->set_max_power_watts(100);
  spec.mutable_gpu()->set_number_of_gpus(1);
  spec.mutable_gpu()->set_gpu_model("Test GPU");
  if (const YAML::Node given = scenario_["job"]) fill(spec, given);
  if (!spec.has_job_id()) spec.set_job_id(spec.job_id_prefix() + "-" + suffix_);
  fill(spec, changed);
  return spec;
}

void Replay::follow(int number, const YAML::Node& line) {
  const std::string where = "line " + std::to_string(number) + " of the walk: ";
  const int batch_size = line[0].as<int>();
  const bool converged = line[2].as<bool>();
  const v1::TrialId id = client_.next_batch_size(spec_.job_id()).trial().id();
  if (id.trial_number() != number || id.batch_size() != batch_size) {
    throw Mismatch(where + "is trial " + std::to_string(id.trial_number()) + " with batch size " +
                   std::to_string(id.batch_size()) + ", not " + std::to_string(batch_size));
  }
  v1::TrainingResult result;
  *result.mutable_trial() = id;
  result.set_time_seconds(1);
  result.set_energy_joules(line[1].as<double>());
  result.set_metric(converged ? 0.95 : 0.1);
  result.set_current_epoch(converged ? 1 : spec_.max_epochs());
  const v1::Decision decision = client_.report_result(result);
  if (!decision.stop_train() || decision.converged() != converged) throw Mismatch(where + decision.message());
}

void Replay::take(const YAML::Node& step) {
  std::string name;
  for (const auto& entry : step) {
    const auto key = entry.first.as<std::string>();
    if (key == "then" || kRefusal.count(key) > 0) continue;
    if (!name.empty() || (steps().count(key) == 0 && key != "until")) {
      throw Mismatch(key + ": no step that this runner knows");
    }
    name = key;
  }
  if (name.empty() || !step[name].IsMap()) throw Mismatch(shown(step) + ": no step that this runner knows");
  try {
    if (name == "until") {
      until(step[name], step["then"]);
    } else {
      call(steps().at(name), step[name], step);
    }
  } catch (const std::exception& error) {
    throw Mismatch(name + ": " + error.what());
  }
}

void Replay::call(Step step, const YAML::Node& arguments, const YAML::Node& whole) {
  const bool refusal = std::any_of(kRefusal.begin(), kRefusal.end(), [&](const auto& key) { return whole[key]; });
  Answer answer;
  try {
    answer = (this->*step)(arguments);
  } catch (const wattwise::Error& error) {
    if (!refusal) throw;
    return check_refusal(error, whole);
  }
  if (refusal) throw Mismatch("was not refused with " + text(whole, "error"));
  if (!whole["then"]) return;
  if (!answer) throw Mismatch("answers nothing that could be compared");
  check(*answer, whole["then"]);
}

void only(const YAML::Node& given, const std::set<std::string>& known) {
  for (const auto& entry : given) {
    const auto name = entry.first.as<std::string>();
    if (known.count(name) == 0) throw Mismatch(name + " is unknown to this runner");
  }
}

std::string text(const YAML::Node& given, const std::string& name, const std::string& otherwise) {
  const YAML::Node found = given[name];
  return found ? found.as<std::string>() : otherwise;
}
