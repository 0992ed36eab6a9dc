// The state of a trial: its link to the server, its progress, and the events that change them.
#pragma once

#include <map>
#include <utility>

namespace wattwise {

// Whether the server answers and has the trial.
enum class Link {
  kTracked,   // The server answers and has the trial.
  kAway,      // The server does not answer; the newest report is kept until it does.
  kDetached,  // The server does not have the trial; nothing is sent until the trial ends, then it is imported.
};

// How far the trial has come.
enum class Progress {
  kRunning,  // The training goes on.
  kDecided,  // The server has ended the trial.
  kEnded,    // This trainer has ended the trial, by a decision of its own or because its training ended.
  kSettled,  // Nothing is left to deliver: the server knows how the trial ended, or has deleted it.
};

// What changes the state of a trial.
enum class Event {
  kAnswered,     // The server has answered, and the trial goes on.
  kStopped,      // The server has ended the trial, in an answer or by a message of its own.
  kDeleted,      // The server says that the trial was deleted with its job.
  kUnreachable,  // The server does not answer.
  kUnknown,      // The server does not have the trial, and has not deleted it.
  kClosed,       // This trainer ends the trial.
  kDelivered,    // The server has everything that it can get of a trial that is over.
};

struct TrialState {
  Link link = Link::kTracked;
  Progress progress = Progress::kRunning;

  // Returns the state after an event, which moves the link and the progress along one table each. A settled trial changes
  // no more, and neither does its link.
  TrialState after(Event event) const {
    static const std::map<std::pair<Link, Event>, Link> links = {
        {{Link::kTracked, Event::kUnreachable}, Link::kAway}, {{Link::kTracked, Event::kUnknown}, Link::kDetached},
        {{Link::kAway, Event::kAnswered}, Link::kTracked},    {{Link::kAway, Event::kStopped}, Link::kTracked},
        {{Link::kAway, Event::kDeleted}, Link::kTracked},     {{Link::kAway, Event::kUnknown}, Link::kDetached},
    };
    static const std::map<std::pair<Progress, Event>, Progress> progresses = {
        {{Progress::kRunning, Event::kStopped}, Progress::kDecided},
        {{Progress::kRunning, Event::kDeleted}, Progress::kSettled},
        {{Progress::kRunning, Event::kClosed}, Progress::kEnded},
        {{Progress::kDecided, Event::kDeleted}, Progress::kSettled},
        {{Progress::kDecided, Event::kDelivered}, Progress::kSettled},
        {{Progress::kEnded, Event::kStopped}, Progress::kDecided},
        {{Progress::kEnded, Event::kDeleted}, Progress::kSettled},
        {{Progress::kEnded, Event::kDelivered}, Progress::kSettled},
    };
    if (progress == Progress::kSettled) return *this;
    const auto next_link = links.find({link, event});
    const auto next_progress = progresses.find({progress, event});
    return {next_link == links.end() ? link : next_link->second,
            next_progress == progresses.end() ? progress : next_progress->second};
  }
};

}  // namespace wattwise
