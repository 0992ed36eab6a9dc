// The steps of a behaviour table: each makes one call and returns its answer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "stream.hpp"
#include "wattwise.hpp"

namespace v1 = wattwise::v1;

// What a step returns; null if there is nothing to compare.
using Answer = std::unique_ptr<google::protobuf::Message>;

template <class Message>
Answer answer(Message message) {
  return std::make_unique<Message>(std::move(message));
}

// The arguments of a step under the names of the message's fields. An empty name leaves the argument out.
YAML::Node renamed(const YAML::Node& args, const std::map<std::string, std::string>& names);

// The steps of one scenario, with its job and the trials and streams that earlier steps have named.
class Steps {
 public:
  // The node has the fields of the job. The suffix makes the job's id unique.
  Steps(wattwise::Client& client, const YAML::Node& job, std::string suffix);

  const v1::JobSpec& spec() const { return spec_; }
  static bool known(const std::string& name);
  // Makes a step's call. Throws wattwise::Error if the server refuses it. `until` repeats its call until the answer is as
  // `then` says.
  Answer take(const std::string& name, const YAML::Node& args, const YAML::Node& then);

  Answer register_job(const YAML::Node& changed);
  Answer next(const YAML::Node& args);
  Answer report(const YAML::Node& args);
  Answer get_job(const YAML::Node& args);
  Answer get_details(const YAML::Node& args);

 private:
  using Step = Answer (Steps::*)(const YAML::Node&);
  static const std::map<std::string, Step>& table();

  Answer heartbeat(const YAML::Node& args);
  Answer end(const YAML::Node& args);
  Answer get(const YAML::Node& args);
  Answer lookup(const YAML::Node& args);
  Answer delete_job(const YAML::Node& args);
  Answer invent(const YAML::Node& args);
  Answer open(const YAML::Node& args);
  Answer send(const YAML::Node& args);
  Answer expect(const YAML::Node& args);
  Answer close(const YAML::Node& args);
  Answer until(const YAML::Node& args, const YAML::Node& then);

  Answer import_trial(const YAML::Node& args);
  Answer reset(const YAML::Node& args);
  Answer exclude(const YAML::Node& args);
  Answer ban(const YAML::Node& args);
  Answer pin(const YAML::Node& args);
  Answer readmit(const YAML::Node& args);
  Answer pause(const YAML::Node& args);
  Answer baseline(const YAML::Node& args);
  Answer baseline_every(const YAML::Node& args);
  Answer set_policy(const YAML::Node& args);
  // A request about a job, by default the scenario's, with the fields that the table names.
  template <class Request>
  Request for_job(const YAML::Node& args) const;

  v1::TrainingResult result(const YAML::Node& args) const;
  const v1::TrialId& trial(const std::string& name) const;
  Stream& stream(const YAML::Node& args) const;

  wattwise::Client& client_;
  v1::JobSpec spec_;
  std::map<std::string, v1::TrialId> trials_;
  std::map<std::string, std::unique_ptr<Stream>> streams_;
};
