// Checks of what a server answers: that it is complete, is about what was asked, and has usable numbers and texts. A server
// may be faulty, outdated, another one, or hostile. If an answer fails a check, the call has failed.
#pragma once

#include <string>

#include "wattwise/v1/batch_size_optimizer.pb.h"

namespace wattwise {

// The warnings that are shown of one trial; there are fewer reasons for them.
constexpr int kMostWarnings = 20;

// A text of the server for logs and terminals: cut if it is very long, without control characters.
std::string shown(const std::string& text);

// The functions below throw Error. They shorten texts.

// A registered job must have the configuration that was sent, apart from its policy.
void check_registered(const v1::RegisterJobResponse& answer, const v1::JobSpec& sent);
// A trial must be the one that was asked for. Without a launch id it may belong to any launch; the number 0 is any number.
void check_trial(const std::string& call, v1::Trial& trial, const std::string& job_id, const std::string& launch_id,
                 int number = 0);
// A job must list the batch size of its trial.
void check_dispatched(const std::string& call, const v1::Trial& trial, const v1::JobSpec& spec);
// An answer must have a decision.
template <class Response>
void check_decision(const std::string& call, Response& answer);

extern template void check_decision(const std::string&, v1::ReportResultResponse&);
extern template void check_decision(const std::string&, v1::HeartbeatResponse&);
extern template void check_decision(const std::string&, v1::StreamResultsResponse&);

}  // namespace wattwise
