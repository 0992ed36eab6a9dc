#include "answers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <google/protobuf/util/message_differencer.h>

#include "wattwise.hpp"

namespace wattwise {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::util::MessageDifferencer;

// In bytes; servers cut their texts to fit into the headers of an answer, which are not larger.
constexpr std::size_t kLongestText = 8192;
constexpr double kLeastLease = 1;

void require(bool holds, const std::string& call, const std::string& fault) {
  if (!holds) throw Error::invalid_answer(call, fault);
}

// The bytes of the UTF-8 character at a place of a text; 0 if there is none.
std::size_t size_of_character(const std::string& text, std::size_t place) {
  const auto byte = [&](std::size_t offset) {
    return place + offset < text.size() ? static_cast<unsigned char>(text[place + offset]) : 0u;
  };
  const unsigned first = byte(0);
  const std::size_t size = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3
                           : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  for (std::size_t offset = 1; offset < size; ++offset) {
    if ((byte(offset) & 0xc0) != 0x80) return 0;
  }
  return size;
}

// Whether a terminal shows a character: no control, and none that changes the direction of the text or hides.
bool is_printable(const std::string& text, std::size_t place, std::size_t size) {
  const std::string character = text.substr(place, size);
  if (size == 1) return character[0] >= 0x20 && character[0] != 0x7f;
  if (size == 2) return !(character >= "\xc2\x80" && character <= "\xc2\x9f") && character != "\xd8\x9c";
  if (size > 3) return true;
  const auto between = [&](const char* first, const char* last) { return character >= first && character <= last; };
  return !between("\xe2\x80\x8b", "\xe2\x80\x8f") && !between("\xe2\x80\xa8", "\xe2\x80\xae") &&
         !between("\xe2\x81\xa0", "\xe2\x81\xaf") && character != "\xef\xbb\xbf";
}

bool is_sum(double value) { return value >= 0 && std::isfinite(value); }

template <class Warned>
void shorten(Warned& warned) {
  auto& warnings = *warned.mutable_warnings();
  if (warnings.size() > kMostWarnings) warnings.DeleteSubrange(kMostWarnings, warnings.size() - kMostWarnings);
  for (auto& warning : warnings) {
    warning.set_field(shown(warning.field()));
    warning.set_message(shown(warning.message()));
  }
}

}  // namespace

std::string shown(const std::string& text) {
  std::string clean;
  for (std::size_t place = 0; place < text.size();) {
    if (clean.size() >= kLongestText) return clean + "…";
    const std::size_t size = size_of_character(text, place);
    const std::size_t taken = std::max<std::size_t>(size, 1);
    if (size > 0 && is_printable(text, place, size)) {
      clean.append(text, place, size);
    } else {
      for (std::size_t offset = 0; offset < taken; ++offset) {
        char escaped[5];
        std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(text[place + offset]));
        clean += escaped;
      }
    }
    place += taken;
  }
  return clean;
}

void check_registered(const v1::RegisterJobResponse& answer, const v1::JobSpec& sent) {
  const std::string call = "RegisterJob";
  require(answer.job().has_spec(), call, "it has no job");
  // A newer server may say more.
  v1::JobSpec spec = answer.job().spec();
  spec.DiscardUnknownFields();
  std::vector<const FieldDescriptor*> fields;
  sent.GetReflection()->ListFields(sent, &fields);
  MessageDifferencer differences;
  // The order of batch sizes does not matter.
  differences.TreatAsSet(v1::JobSpec::descriptor()->FindFieldByNumber(v1::JobSpec::kBatchSizesFieldNumber));
  for (const FieldDescriptor* field : fields) {
    // Unset fields of the rule have their defaults in the answer.
    if (field->number() == v1::JobSpec::kPolicyFieldNumber || field->number() == v1::JobSpec::kEarlyStoppingFieldNumber) {
      continue;
    }
    require(differences.CompareWithFields(sent, spec, {field}, {field}), call,
            "its job has another " + field->name() + " than the job that was registered");
  }
  const auto rule = sent.early_stopping().rule_case();
  require(rule == v1::EarlyStopping::RULE_NOT_SET || rule == spec.early_stopping().rule_case(), call,
          "its job has another early_stopping than the job that was registered");
  const double lease = spec.trial_lease_seconds();
  require(lease == 0 || (lease >= kLeastLease && std::isfinite(lease)), call,
          "its job has the lease " + std::to_string(lease) + " s");
  require(!spec.has_max_epochs() || spec.max_epochs() >= 1, call,
          "its job has max_epochs " + std::to_string(spec.max_epochs()));
  require(!std::isnan(spec.target().value()), call, "its job has the target NaN");
}

void check_trial(const std::string& call, v1::Trial& trial, const std::string& job_id, const std::string& launch_id,
                 int number) {
  require(trial.has_id(), call, "it has no trial");
  const v1::TrialId& id = trial.id();
  require(id.job_id() == job_id, call, "its trial is of job '" + id.job_id().substr(0, 100) + "', not '" + job_id + "'");
  require(!id.launch_id().empty() && (launch_id.empty() || id.launch_id() == launch_id), call,
          "its trial belongs to another launch");
  require(number == 0 || id.trial_number() == number, call,
          "its trial has the number " + std::to_string(id.trial_number()));
  require(trial.batch_size() > 0 && trial.newest().epoch() >= 0, call,
          "its trial has the batch size " + std::to_string(trial.batch_size()) + " and the epoch " +
              std::to_string(trial.newest().epoch()));
  require(is_sum(trial.newest().time_seconds()) && is_sum(trial.newest().energy_joules()), call,
          "its trial has " + std::to_string(trial.newest().time_seconds()) + " s and " +
              std::to_string(trial.newest().energy_joules()) +
              " J");
  trial.set_reason(shown(trial.reason()));
  if (trial.has_decision_message()) trial.set_decision_message(shown(trial.decision_message()));
  shorten(trial);
}

void check_dispatched(const std::string& call, const v1::Trial& trial, const v1::JobSpec& spec) {
  const auto& sizes = spec.batch_sizes();
  require(std::find(sizes.begin(), sizes.end(), trial.batch_size()) != sizes.end(), call,
          "its trial has the batch size " + std::to_string(trial.batch_size()) + ", which the job does not list");
  require(trial.id().trial_number() > 0, call,
          "its trial has the number " + std::to_string(trial.id().trial_number()));
}

template <class Response>
void check_decision(const std::string& call, Response& answer) {
  require(answer.has_decision(), call, "it has no decision");
  v1::Decision& decision = *answer.mutable_decision();
  decision.set_message(shown(decision.message()));
  shorten(decision);
}

template void check_decision(const std::string&, v1::ReportResultResponse&);
template void check_decision(const std::string&, v1::HeartbeatResponse&);
template void check_decision(const std::string&, v1::StreamResultsResponse&);

}  // namespace wattwise
