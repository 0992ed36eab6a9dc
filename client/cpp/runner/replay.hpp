// One scenario of a behaviour table against a server, as tests/scenarios/README.md describes it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <yaml-cpp/yaml.h>

#include "stream.hpp"
#include "wattwise.hpp"

namespace v1 = wattwise::v1;

using Answer = std::unique_ptr<google::protobuf::Message>;

class Replay {
 public:
  // The suffix makes the job's id, where the table gives none.
  Replay(wattwise::Client& client, const YAML::Node& scenario, std::string suffix);

  // Throws at the first step that is not as the table says.
  void run();

 private:
  using Step = Answer (Replay::*)(const YAML::Node&);
  static const std::map<std::string, Step>& steps();

  v1::JobSpec job(const YAML::Node& changed) const;
  void follow(int number, const YAML::Node& line);
  void take(const YAML::Node& step);
  void call(Step step, const YAML::Node& arguments, const YAML::Node& whole);

  Answer next(const YAML::Node& given);
  Answer report(const YAML::Node& given);
  Answer heartbeat(const YAML::Node& given);
  Answer end(const YAML::Node& given);
  Answer register_job(const YAML::Node& given);
  Answer get(const YAML::Node& given);
  Answer get_job(const YAML::Node& given);
  Answer delete_job(const YAML::Node& given);
  Answer invent(const YAML::Node& given);
  Answer open(const YAML::Node& given);
  Answer send(const YAML::Node& given);
  Answer expect(const YAML::Node& given);
  Answer close(const YAML::Node& given);
  void until(const YAML::Node& given, const YAML::Node& then);

  v1::TrainingResult result(const YAML::Node& given) const;
  const v1::TrialId& trial(const YAML::Node& given) const;
  Stream& stream(const YAML::Node& given) const;

  wattwise::Client& client_;
  const YAML::Node scenario_;
  const std::string suffix_;
  v1::JobSpec spec_;
  std::map<std::string, v1::TrialId> trials_;
  std::map<std::string, std::unique_ptr<Stream>> streams_;
};

// Refuses what a step does not know, which must not be passed over in silence.
void only(const YAML::Node& given, const std::set<std::string>& known);

// A field of a step; `otherwise` if the table does not give it.
std::string text(const YAML::Node& given, const std::string& name, const std::string& otherwise = "");
